package fencehttp

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/underfence"
)

// A Guard lets requests through to a handler whose tokens no later one has overtaken.
type Guard struct {
	// DB is where the fences are: a pool. Each request that runs or waits uses one connection, so it bounds how many do. Give it
	// one that the handler does not use: the requests that wait for the handler could have all of its connections, and the
	// handler would wait for them. Required.
	DB fence.Beginner

	// Fence says which lock protects what a request is about, and under which name its fence is kept (see fence.Raise).
	// Required. What can be neither, an empty resource for one, or a path that is no UTF-8, is answered with 404.
	Fence func(r *http.Request) (lock, resource string)

	// Options are those of fence.Tx: fence.Schema, say.
	Options []fence.Option

	// Logger hears of what the answer does not tell: errors of the database. Nil: nobody.
	Logger *slog.Logger
}

// The types of problems, as RFC 9457 has them.
const (
	StaleToken   = "urn:fencedlock:problem:stale-token"   // 409: a later token was here
	MissingToken = "urn:fencedlock:problem:missing-token" // 428: the request has none
	InvalidToken = "urn:fencedlock:problem:invalid-token" // 400: it is no token, or was never granted
	OtherLock    = "urn:fencedlock:problem:other-lock"    // 409: the resource belongs to another lock
	Unavailable  = "urn:fencedlock:problem:unavailable"   // 503: the fence cannot be asked
)

// A Problem is the body of a refusal, of type application/problem+json.
type Problem struct {
	Type      string      `json:"type"`
	Title     string      `json:"title"`
	Status    int         `json:"status"`
	Detail    string      `json:"detail,omitempty"`
	Token     fence.Token `json:"token,omitempty"`      // the request's
	LastToken fence.Token `json:"last_token,omitempty"` // the later one that was here
}

// Handler returns a handler that runs next for a request whose token is not behind the fence, and holds the fence until next
// returns. A later token waits meanwhile, until the request's context ends; that a client has gone, net/http notices only when there
// is no body left to read. What is refused is answered with a [Problem] and
// never reaches next. A panic of next passes through. A Guard without DB or Fence panics here, before any request.
//
// What goes on after next has returned is not under the fence: so it is with what http.TimeoutHandler has given up, and with who
// uses a hijacked connection elsewhere. Put an http.TimeoutHandler around this handler, and not into it: then it answers, and the fence is
// held until next has returned all the same.
//
// A client that is stopped and not gone, in the middle of a body that next reads or of an answer, holds the fence for as long as next
// waits for it. Read the body before this handler, as examples/storage does, or let http.Server's ReadTimeout and WriteTimeout bound
// that.
//
// The fence is raised and committed before next runs: it stays where it is whatever becomes of next. To let go of it waits for the
// database for 5 s at most.
func (g Guard) Handler(next http.Handler) http.Handler {
	if g.DB == nil || g.Fence == nil {
		panic("fencehttp: a Guard needs DB and Fence")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		values := r.Header.Values(Header)
		if len(values) == 0 {
			refuse(w, Problem{
				Type: MissingToken, Title: "the request needs a fencing token", Status: http.StatusPreconditionRequired,
				Detail: "send the token of the lock in the header " + Header,
			})
			return
		}
		token, err := parse(values)
		if err != nil {
			refuse(w, Problem{Type: InvalidToken, Title: "not a fencing token", Status: http.StatusBadRequest, Detail: err.Error()})
			return
		}
		lock, resource := g.Fence(r)
		grant := fence.Grant{Lock: lock, Token: token}
		if grant.Validate() != nil || !isResource(resource) {
			http.NotFound(w, r)
			return
		}
		ran, err, lost := underfence.Run(r.Context(), g.DB, grant, resource, g.Options, func() error {
			next.ServeHTTP(w, r)
			return nil
		})
		switch {
		case !ran:
			g.fail(w, r, token, err)
		case lost != nil: // the answer has been given, and the fence was raised before
			g.log(r.Context(), "fencehttp: the fence was let go of before the handler had ended", lost)
		}
	})
}

// isResource says whether there can be a fence of that name: see fence.Raise. Who sends requests may choose it.
func isResource(name string) bool {
	return name != "" && len(name) <= 1024 && utf8.ValidString(name) && !strings.ContainsRune(name, 0)
}

// fail answers for a request that did not pass.
func (g Guard) fail(w http.ResponseWriter, r *http.Request, token fence.Token, err error) {
	p := Problem{Token: token}
	var stale *fence.StaleError
	switch {
	case errors.As(err, &stale):
		p.Type, p.Title, p.Status, p.LastToken = StaleToken, "a later holder of the lock was here", http.StatusConflict, stale.LastToken
		p.Detail = "stop: the lock has moved on"
		if stale.Behind {
			p.Detail = "the lock service is behind: its owner must raise the floor of its tokens"
			g.log(r.Context(), "fencehttp: refused", err)
		}
		w.Header().Set(Header, format(stale.LastToken))
		w.Header().Set(RefusedHeader, format(token))
	case errors.Is(err, fence.ErrOtherLock):
		p.Type, p.Title, p.Status = OtherLock, "another lock protects this", http.StatusConflict
		g.log(r.Context(), "fencehttp: refused", err)
	case errors.Is(err, fence.ErrNeverGranted):
		p.Type, p.Title, p.Status = InvalidToken, "the token was never granted", http.StatusBadRequest
	default:
		p.Type, p.Title, p.Status = Unavailable, "the fence cannot be asked", http.StatusServiceUnavailable
		if r.Context().Err() != context.Canceled { // whoever has gone has not found an outage
			g.log(r.Context(), "fencehttp: the fence cannot be asked", err)
		}
	}
	refuse(w, p)
}

func (g Guard) log(ctx context.Context, message string, err error) {
	if g.Logger != nil {
		g.Logger.ErrorContext(ctx, message, "error", err)
	}
}

func refuse(w http.ResponseWriter, p Problem) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	json.NewEncoder(w).Encode(p) //nolint:errcheck // who sent the request has gone
}
