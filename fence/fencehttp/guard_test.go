package fencehttp_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/fence/fencehttp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// A shelf is a service whose effects are what it was told, in order.
type shelf struct {
	*httptest.Server
	mu   sync.Mutex
	kept []string
	in   chan string // each body that has arrived waits here for the test, if there is a channel
	log  strings.Builder
}

// newShelf guards a shelf by the lock "billing": each path is a resource.
func newShelf(t *testing.T, d *pgtest.Database) *shelf {
	t.Helper()
	s := &shelf{}
	guard := fencehttp.Guard{
		DB:     d.Pool(t),
		Fence:  func(r *http.Request) (lock, resource string) { return r.Host, strings.TrimPrefix(r.URL.Path, "/") },
		Logger: slog.New(slog.NewTextHandler(&s.log, nil)),
	}
	s.Server = httptest.NewServer(guard.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if s.in != nil {
			s.in <- string(body)
			s.in <- "go on"
		}
		if string(body) == "panic" {
			panic(http.ErrAbortHandler)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.kept = append(s.kept, string(body))
	})))
	t.Cleanup(s.Close)
	return s
}

func (s *shelf) content() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.kept, " ")
}

// put sends a body under the lock "billing", with header values for the token.
func (s *shelf) put(t *testing.T, client *http.Client, ctx context.Context, path, body string, tokens ...string) (*http.Response, fencehttp.Problem, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "billing"
	for _, token := range tokens {
		r.Header.Add(fencehttp.Header, token)
	}
	resp, err := client.Do(r)
	if err != nil {
		return nil, fencehttp.Problem{}, err
	}
	defer resp.Body.Close()
	var p fencehttp.Problem
	if resp.StatusCode != http.StatusOK {
		if err := json.NewDecoder(resp.Body).Decode(&p); err != nil {
			t.Errorf("the body of status %d: %v", resp.StatusCode, err)
		}
		if got := resp.Header.Get("Content-Type"); got != "application/problem+json" || p.Status != resp.StatusCode || p.Title == "" {
			t.Errorf("%s: %+v with status %d", got, p, resp.StatusCode)
		}
	}
	return resp, p, nil
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestAGuardLetsNoEarlierTokenThrough(t *testing.T) {
	t.Parallel()
	s := newShelf(t, pgtest.DB(t))
	for _, c := range []struct {
		tokens []string
		path   string
		status int
		kind   string
		last   fence.Token
	}{
		{tokens: []string{"7"}, status: 200},
		{tokens: []string{"7"}, status: 200}, // the same grant
		{tokens: []string{"6"}, status: 409, kind: fencehttp.StaleToken, last: 7},
		{tokens: []string{"6"}, path: "/another", status: 200},
		{tokens: []string{"9"}, status: 200},
		{tokens: []string{"8"}, status: 409, kind: fencehttp.StaleToken, last: 9},
		{status: 428, kind: fencehttp.MissingToken},
		{tokens: []string{"9", "9"}, status: 400, kind: fencehttp.InvalidToken},
		{tokens: []string{""}, status: 400, kind: fencehttp.InvalidToken},
		{tokens: []string{"0"}, status: 400, kind: fencehttp.InvalidToken},
		{tokens: []string{"-1"}, status: 400, kind: fencehttp.InvalidToken},
		{tokens: []string{"+9"}, status: 400, kind: fencehttp.InvalidToken},
		{tokens: []string{"09"}, status: 400, kind: fencehttp.InvalidToken},
		{tokens: []string{"9.0"}, status: 400, kind: fencehttp.InvalidToken},
		{tokens: []string{"0x9"}, status: 400, kind: fencehttp.InvalidToken},
		{tokens: []string{"9, 10"}, status: 400, kind: fencehttp.InvalidToken},
		{tokens: []string{"9007199254740992"}, status: 400, kind: fencehttp.InvalidToken},
		{tokens: []string{"99999999999999999999"}, status: 400, kind: fencehttp.InvalidToken},
		{tokens: []string{"9007199254740991"}, status: 400, kind: fencehttp.InvalidToken}, // no service can have drawn it
		{tokens: []string{"9"}, status: 200},
	} {
		if c.path == "" {
			c.path = "/shelf"
		}
		resp, p, err := s.put(t, http.DefaultClient, bounded(t), c.path, strings.Join(c.tokens, "+"), c.tokens...)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != c.status || p.Type != c.kind || p.LastToken != c.last {
			t.Errorf("%q: status %d, %+v", c.tokens, resp.StatusCode, p)
		}
		if got := resp.Header.Get(fencehttp.Header); c.last > 0 && got == "" || c.last == 0 && got != "" {
			t.Errorf("%q: the answer's header is %q", c.tokens, got)
		}
		refused := resp.Header.Get(fencehttp.RefusedHeader)
		if c.last > 0 && (refused != c.tokens[0] || strconv.FormatInt(int64(p.Token), 10) != refused) || c.last == 0 && refused != "" {
			t.Errorf("%q: the problem is of token %d, the header of %q", c.tokens, p.Token, refused)
		}
	}
	if got := s.content(); got != "7 7 6 9 9" {
		t.Errorf("kept: %s", got)
	}
}

func TestAResourceOfAnotherLockIsToldApart(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	s := newShelf(t, d)
	d.Exec(t, `SELECT pglock.fence_raise('shelf', 'another lock', 0, 3)`)
	resp, p, err := s.put(t, http.DefaultClient, bounded(t), "/shelf", "x", "7")
	if err != nil || resp.StatusCode != 409 || p.Type != fencehttp.OtherLock || resp.Header.Get(fencehttp.Header) != "" {
		t.Errorf("%v, %+v, %v", resp, p, err)
	}
	if !strings.Contains(s.log.String(), "another lock") || strings.Contains(p.Detail, "another lock") {
		t.Errorf("the log: %s; the answer: %+v", s.log.String(), p)
	}
	if resp, err := http.Get(s.URL + "/"); err != nil || resp.StatusCode != 428 {
		t.Errorf("without a token: %v, %v", resp, err)
	} else {
		resp.Body.Close() //nolint:errcheck // read only
	}
}

// A later token waits for the handler of an earlier one, so their effects come in order.
func TestTheFenceIsHeldThroughTheHandler(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	s := newShelf(t, d)
	s.in = make(chan string)
	answers := make(chan int, 2)
	put := func(token string) {
		resp, _, err := s.put(t, http.DefaultClient, bounded(t), "/shelf", token, token)
		if err != nil {
			t.Error(err)
			answers <- 0
			return
		}
		answers <- resp.StatusCode
	}
	go put("7")
	if got := <-s.in; got != "7" {
		t.Fatal(got)
	}
	go put("8")
	d.WaitFor(t, pgtest.Waiting)
	for range 3 { // goes on; the next has arrived; goes on
		<-s.in
	}
	if a, b := <-answers, <-answers; a != 200 || b != 200 || s.content() != "7 8" {
		t.Errorf("answers %d and %d, kept: %s", a, b, s.content())
	}
}

// A limit of the server's on idle or long transactions is not one on handlers.
func TestTheFenceOutlastsTheLimitsOfTheServer(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, `DO $$ BEGIN
		EXECUTE format('ALTER DATABASE %I SET idle_in_transaction_session_timeout = 60000', current_database());
		IF current_setting('transaction_timeout', true) IS NOT NULL THEN
			EXECUTE format('ALTER DATABASE %I SET transaction_timeout = 60000', current_database());
		END IF; END $$`)
	db := &spy{Pool: d.Pool(t)}
	const limits = `SELECT current_setting('idle_in_transaction_session_timeout') || ' ' || coalesce(current_setting('transaction_timeout', true), '0')`
	look := func(from interface {
		QueryRow(context.Context, string, ...any) pgx.Row
	},
	) (s string) {
		if err := from.QueryRow(t.Context(), limits).Scan(&s); err != nil {
			t.Error(err)
		}
		return s
	}
	during := ""
	guard := fencehttp.Guard{DB: db, Fence: func(*http.Request) (lock, resource string) { return "billing", "shelf" }}
	h := guard.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { during = look(db.tx) }))
	r := httptest.NewRequestWithContext(bounded(t), http.MethodPut, "/shelf", nil)
	r.Header.Set(fencehttp.Header, "7")
	h.ServeHTTP(httptest.NewRecorder(), r)
	if after := look(db); during != "0 0" || !strings.HasPrefix(after, "1min ") {
		t.Errorf("the limits are %q in the handler, and %q afterwards", during, after)
	}
}

// A spy keeps the transaction that was begun last.
type spy struct {
	*pgxpool.Pool
	tx pgx.Tx
}

func (s *spy) BeginTx(ctx context.Context, opts pgx.TxOptions) (_ pgx.Tx, err error) {
	s.tx, err = s.Pool.BeginTx(ctx, opts)
	return s.tx, err
}

// What a handler or its connection comes to does not lower the fence.
func TestTheFenceStaysWhateverBecomesOfTheHandler(t *testing.T) {
	t.Parallel()
	for what, harm := range map[string]func(t *testing.T, d *pgtest.Database){
		"it panics": nil,
		"its connection to the fence is cut": func(t *testing.T, d *pgtest.Database) {
			if n := d.KillBackends(t, `state = 'idle in transaction'`); n != 1 {
				t.Errorf("%d connections hold a fence, want 1", n)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			s := newShelf(t, d)
			s.in = make(chan string)
			done := make(chan struct{})
			body := "7"
			if harm == nil {
				body = "panic"
			}
			go func() {
				defer close(done)
				_, _, err := s.put(t, http.DefaultClient, bounded(t), "/shelf", body, "7")
				if (err == nil) != (harm != nil) {
					t.Errorf("the answer: %v", err)
				}
			}()
			<-s.in
			if harm != nil {
				harm(t, d)
			}
			<-s.in
			<-done
			s.in = nil
			resp, p, err := s.put(t, http.DefaultClient, bounded(t), "/shelf", "6", "6")
			if err != nil || resp.StatusCode != 409 || p.LastToken != 7 {
				t.Errorf("an earlier token: %v, %+v, %v", resp, p, err)
			}
		})
	}
}

func TestAGuardWithoutItsDatabaseLetsNothingThrough(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	s := newShelf(t, d)
	d.Exec(t, `DROP SCHEMA pglock CASCADE`)
	resp, p, err := s.put(t, http.DefaultClient, bounded(t), "/shelf", "x", "7")
	if err != nil || resp.StatusCode != 503 || p.Type != fencehttp.Unavailable || strings.Contains(p.Detail+p.Title, "schema") {
		t.Errorf("%v, %+v, %v", resp, p, err)
	}
	if got := s.content(); got != "" || !strings.Contains(s.log.String(), "migrations.Up") {
		t.Errorf("kept: %q; the log: %s", got, s.log.String())
	}
}

// From the lease to the effect and back: the refusal ends the lease.
func TestARefusedRequestEndsItsLease(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	s := newShelf(t, d)
	locks, err := pglock.Open(d.URL, pglock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { locks.Close(bounded(t)) }) //nolint:errcheck // its leases are over
	take := func() *pglock.Lease {
		l, err := locks.TryAcquire(bounded(t), "billing", pglock.NoRenewal(), pglock.TTL(20*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	client := &http.Client{Transport: fencehttp.Transport{}}
	old := take()
	d.Age(t, "billing", time.Minute)
	next := take()
	put := func(l *pglock.Lease, body string) int {
		resp, _, err := s.put(t, client, fence.NewContext(bounded(t), l.Grant()), "/shelf", body, "1") // by hand, and replaced
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode
	}
	if got := put(next, "next"); got != 200 {
		t.Errorf("the next holder: %d", got)
	}
	if err := old.Err(); err != nil {
		t.Fatalf("it knows already: %v", err)
	}
	if got := put(old, "old"); got != 409 {
		t.Errorf("the old holder: %d", got)
	}
	var lost *pglock.LostError
	if !errors.As(old.Err(), &lost) || lost.Cause != pglock.Taken {
		t.Errorf("the old lease: %v", old.Err())
	}
	if err := next.Release(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.put(t, client, fence.NewContext(bounded(t), next.Grant()), "/shelf", "released"); !errors.Is(err, pglock.ErrReleased) {
		t.Errorf("a released lease: %v", err)
	}
	resp, p, err := s.put(t, client, bounded(t), "/shelf", "no grant")
	if err != nil || resp.StatusCode != 428 || p.Type != fencehttp.MissingToken {
		t.Errorf("without a grant: %v, %+v, %v", resp, p, err)
	}
	if got := s.content(); got != "next" {
		t.Errorf("kept: %s", got)
	}
}

// Those who hold a lock beside each other are not stale after one another, and the header cannot say so.
func TestAGrantThatOthersHoldTooIsNotSent(t *testing.T) {
	t.Parallel()
	g := fence.Grant{Lock: "billing", Token: 7}.OnStale(func(err error) { t.Errorf("the lease was told %v", err) })
	permit := g
	permit.Slot = 1
	for what, g := range map[string]fence.Grant{"shared": g.AsShared(), "a permit": permit} {
		sent := base(func(*http.Request) (*http.Response, error) {
			t.Errorf("%s: it was sent", what)
			return nil, errors.New("sent")
		})
		r := httptest.NewRequestWithContext(fence.NewContext(bounded(t), g), http.MethodPut, "/shelf", strings.NewReader("x"))
		if _, err := (fencehttp.Transport{Base: sent}).RoundTrip(r); !errors.Is(err, fence.ErrShared) {
			t.Errorf("%s: %v, want ErrShared", what, err)
		}
	}
}

type base func(*http.Request) (*http.Response, error)

func (f base) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestARequestWithoutHeadersIsSentWithItsToken(t *testing.T) {
	t.Parallel()
	got := ""
	sent := base(func(r *http.Request) (*http.Response, error) {
		got = r.Header.Get(fencehttp.Header)
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	})
	r := (&http.Request{Method: http.MethodGet}).WithContext(fence.NewContext(bounded(t), fence.Grant{Lock: "billing", Token: 7}))
	resp, err := fencehttp.Transport{Base: sent}.RoundTrip(r)
	if err != nil || got != "7" || r.Header != nil {
		t.Fatalf("%v; it was sent with token %q, and the request has %v", err, got, r.Header)
	}
	resp.Body.Close() //nolint:errcheck // it is empty
}

// Whoever stops waiting for a fence is no outage.
func TestAClientThatHasGoneIsNotLogged(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	s := newShelf(t, d)
	conn := d.Conn(t)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := fence.Raise(t.Context(), tx, fence.Grant{Lock: "billing", Token: 7}, "shelf"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(bounded(t))
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/shelf", nil) // whose body is read, since there is none
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "billing"
	r.Header.Set(fencehttp.Header, "8")
	gone := make(chan error)
	go func() {
		resp, err := http.DefaultClient.Do(r)
		if err == nil {
			resp.Body.Close() //nolint:errcheck // it is not read
		}
		gone <- err
	}()
	d.WaitFor(t, pgtest.Waiting)
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("the client: %v", err)
	}
	s.Close() // and so the request has ended
	if s.log.Len() > 0 || s.content() != "" {
		t.Errorf("kept %q, logged %s", s.content(), s.log.String())
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A 409 of the service's own says nothing about the lock, nor does a refusal of another token that it has met itself and passes on.
func TestAnotherConflictEndsNoLease(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct{ last, refused string }{
		"none":              {},
		"of no token":       {last: "8"},
		"of another token":  {last: "8", refused: "6"},
		"of no later token": {last: "7", refused: "7"},
		"of no last token":  {last: "x", refused: "7"},
		"real":              {last: "8", refused: "7"},
	} {
		service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for header, value := range map[string]string{fencehttp.Header: c.last, fencehttp.RefusedHeader: c.refused} {
				if value != "" {
					w.Header().Set(header, value)
				}
			}
			w.WriteHeader(http.StatusConflict)
		}))
		told := 0
		g := fence.Grant{Lock: "billing", Token: 7}.OnStale(func(error) { told++ })
		r, err := http.NewRequestWithContext(fence.NewContext(bounded(t), g), http.MethodHead, service.URL, nil) // whose answer has no body
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Client{Transport: fencehttp.Transport{Base: http.DefaultTransport}}).Do(r)
		if err != nil || resp.StatusCode != 409 {
			t.Errorf("%s: %v, %v", what, resp, err)
		} else {
			resp.Body.Close() //nolint:errcheck // it is empty
		}
		if (told == 1) != (what == "real") {
			t.Errorf("%s: the lease was told %d times", what, told)
		}
		if r.Header.Get(fencehttp.Header) != "" {
			t.Errorf("%s: the request was changed", what)
		}
		service.Close()
	}
}

// Whoever sends a request may choose its path and host: one that can name no resource or lock is the sender's mistake, and no outage.
func TestWhatCanBeNoResourceIsNotFound(t *testing.T) {
	t.Parallel()
	s := newShelf(t, pgtest.DB(t))
	for what, c := range map[string]struct{ path, host string }{
		"empty":           {path: "/"},
		"too long":        {path: "/" + strings.Repeat("x", 1025)},
		"NUL":             {path: "/a%00b"},
		"no UTF-8":        {path: "/%ff"},
		"a lock too long": {path: "/a", host: strings.Repeat("x", 256)},
	} {
		r, err := http.NewRequestWithContext(bounded(t), http.MethodPut, s.URL+c.path, strings.NewReader(what))
		if err != nil {
			t.Fatal(err)
		}
		r.Host = cmp.Or(c.host, "billing")
		r.Header.Set(fencehttp.Header, "7")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close() //nolint:errcheck // it is not read
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: status %d, want 404", what, resp.StatusCode)
		}
	}
	if s.log.Len() > 0 || s.content() != "" {
		t.Errorf("kept %q, logged %s", s.content(), s.log.String())
	}
}

// An http.TimeoutHandler answers for a handler that it has given up, and that goes on: around a guard, that is under the fence still.
func TestTheFenceIsHeldForAHandlerThatWasGivenUp(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	guard := fencehttp.Guard{DB: d.Pool(t), Fence: func(*http.Request) (lock, resource string) { return "billing", "shelf" }}
	begun, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan string, 2)
	guarded := guard.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		token := r.Header.Get(fencehttp.Header)
		if token == "7" {
			close(begun)
			<-goOn
		}
		ended <- token
	}))
	ask := func(ctx context.Context, h http.Handler, token string) <-chan int {
		r := httptest.NewRequestWithContext(ctx, http.MethodPut, "/shelf", nil)
		r.Header.Set(fencehttp.Header, token)
		answer := make(chan int, 1)
		go func() {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			answer <- w.Code
		}()
		return answer
	}
	ctx, giveUp := context.WithCancel(bounded(t)) // as it does when its time is over
	given := ask(ctx, http.TimeoutHandler(guarded, time.Minute, ""), "7")
	<-begun
	giveUp()
	if got := <-given; got != http.StatusServiceUnavailable {
		t.Errorf("the answer for the handler that goes on: %d", got)
	}
	next := ask(bounded(t), guarded, "8")
	d.WaitFor(t, pgtest.Waiting)
	close(goOn)
	if got, first, second := <-next, <-ended, <-ended; got != http.StatusOK || first != "7" || second != "8" {
		t.Errorf("the later token: %d; ended: %s, then %s", got, first, second)
	}
}

// Two headers would be refused, and names that were not put through http.Header.Set are sent as they are.
func TestAHeaderSetByHandIsReplacedInAnySpelling(t *testing.T) {
	t.Parallel()
	sent := http.Header(nil)
	transport := fencehttp.Transport{Base: base(func(r *http.Request) (*http.Response, error) {
		sent = r.Header
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	})}
	r := httptest.NewRequestWithContext(fence.NewContext(bounded(t), fence.Grant{Lock: "billing", Token: 7}), http.MethodPut, "/shelf", nil)
	byHand := http.Header{"fencing-token": {"1"}, "FENCING-TOKEN": {"2"}, "Another": {"3"}}
	r.Header = byHand.Clone()
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close() //nolint:errcheck // it is empty
	if want := (http.Header{fencehttp.Header: {"7"}, "Another": {"3"}}); !reflect.DeepEqual(sent, want) {
		t.Errorf("sent with %v, want %v", sent, want)
	}
	if !reflect.DeepEqual(r.Header, byHand) {
		t.Errorf("the request was changed: %v", r.Header)
	}
}

func TestAClientClosesTheIdleConnectionsOfTheBase(t *testing.T) {
	t.Parallel()
	closed := false
	client := &http.Client{Transport: fencehttp.Transport{Base: idle{http.DefaultTransport, func() { closed = true }}}}
	client.CloseIdleConnections()
	if !closed {
		t.Error("they stay open")
	}
}

// An idle is a base that is told to close its idle connections.
type idle struct {
	http.RoundTripper
	close func()
}

func (i idle) CloseIdleConnections() { i.close() }

// A database that goes silent while a handler runs does not keep the answer, which has been given, from the client.
func TestASilentDatabaseDoesNotKeepTheAnswer(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	proxy := pgtest.NewProxy(t, d)
	pool, err := pgxpool.New(bounded(t), proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	t.Cleanup(proxy.Resume)
	var log strings.Builder
	guard := fencehttp.Guard{
		DB: pool, Fence: func(*http.Request) (lock, resource string) { return "billing", "shelf" },
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	}
	service := httptest.NewServer(guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		proxy.Stall(pgtest.Both)
		w.WriteHeader(http.StatusNoContent)
	})))
	r, err := http.NewRequestWithContext(bounded(t), http.MethodPut, service.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(fencehttp.Header, "7")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Error(err)
	} else if resp.Body.Close(); resp.StatusCode != http.StatusNoContent { //nolint:errcheck // it is empty
		t.Errorf("status %d", resp.StatusCode)
	}
	service.Close() // and so the handler has returned
	if !strings.Contains(log.String(), "before the handler had ended") {
		t.Errorf("logged: %s", log.String())
	}
}
