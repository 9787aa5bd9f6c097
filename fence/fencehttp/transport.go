package fencehttp

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/fencedlock/fencedlock/fence"
)

// Header carries the token of a request, and of an answer that refuses it the later token that was there: a decimal number,
// without sign or leading zeros.
const Header = "Fencing-Token"

// RefusedHeader carries, in an answer that refuses a token as stale, that token. A service that has met a refusal on requests of its
// own may pass it on: so its sender can tell that it is about another token. That is not read from the body, which is the caller's, and
// which the answer to a HEAD does not have.
const RefusedHeader = "Fencing-Token-Refused"

// A Transport puts the token of the grant that a request's context carries (fence.NewContext) into its [Header]. A request
// whose context carries none is sent as it is, so that the Guard can refuse it; a header that somebody has set by hand stays
// only then. A grant that cannot be one, or whose lease was given up, is an error, and nothing is sent; so is one of a lock that others
// hold at the same time, shared or with permits ([fence.ErrShared]): a live holder would be refused after another, and told that it is stale.
//
// When the answer is a Guard's refusal of the token as stale, the lease of the grant is ended, and the answer is returned as it is.
// It says that this sending has had no effect. net/http sends by itself again what it takes for idempotent, a GET or what has an
// Idempotency-Key, when the connection ends before the answer: then the first sending may have had one.
//
// Where a client follows a redirect, the token goes along, to whichever host it leads. Any number of goroutines may use one Transport.
type Transport struct {
	Base http.RoundTripper // what sends; nil: http.DefaultTransport
}

// RoundTrip implements http.RoundTripper.
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	g, ok := fence.FromContext(r.Context())
	if !ok {
		return base.RoundTrip(r)
	}
	err := g.Validate()
	if err == nil && (g.IsShared() || g.Slot > 0) { // the header has no room for a slot
		err = fmt.Errorf("fencehttp: lock %q: %w: the other side could not tell a stale token", g.Lock, fence.ErrShared)
	}
	if err != nil {
		if r.Body != nil {
			r.Body.Close() //nolint:errcheck // a RoundTripper closes it, whatever happens
		}
		return nil, err
	}
	r = r.Clone(r.Context()) // a RoundTripper does not change its request
	if r.Header == nil {
		r.Header = http.Header{}
	}
	token := format(g.Token)
	// In any spelling, since two would be refused.
	maps.DeleteFunc(r.Header, func(name string, _ []string) bool { return strings.EqualFold(name, Header) })
	r.Header.Set(Header, token)
	resp, err := base.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusConflict {
		last, err := parse(resp.Header.Values(Header))
		if err == nil && last > g.Token && slices.Equal(resp.Header.Values(RefusedHeader), []string{token}) {
			g.Stale(&fence.StaleError{Resource: r.Method + " " + r.URL.Redacted(), Lock: g.Lock, Token: g.Token, LastToken: last})
		}
	}
	return resp, err
}

// CloseIdleConnections is for http.Client.CloseIdleConnections, which does nothing to the connections of Base otherwise.
func (t Transport) CloseIdleConnections() {
	(&http.Client{Transport: t.Base}).CloseIdleConnections()
}

func format(t fence.Token) string { return strconv.FormatInt(int64(t), 10) }

// parse takes what the header can hold, and nothing that merely looks like it.
func parse(values []string) (fence.Token, error) {
	if len(values) != 1 {
		return 0, fmt.Errorf("%d headers %s, want one", len(values), Header)
	}
	n, err := strconv.ParseInt(values[0], 10, 64)
	if err != nil || n <= 0 || n >= 1<<53 || format(fence.Token(n)) != values[0] {
		return 0, fmt.Errorf("%s %.40q: want a decimal number from 1 to below 2^53", Header, values[0])
	}
	return fence.Token(n), nil
}
