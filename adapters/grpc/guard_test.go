package fencegrpc_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	fencegrpc "github.com/fencedlock/fencedlock/adapters/grpc"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

func TestAGuardLetsNoEarlierTokenThrough(t *testing.T) {
	t.Parallel()
	s := newShelf(t, pgtest.DB(t).Pool(t), nil)
	for _, c := range []struct {
		text   string
		tokens []string
		want   string
	}{
		{"1", []string{"7"}, "OK"},
		{"2", []string{"7"}, "OK"}, // the same grant
		{"-", []string{"6"}, "Aborted STALE_TOKEN 6<7"},
		{"b/3", []string{"6"}, "OK"}, // another shelf
		{"4", []string{"9"}, "OK"},
		{"-", []string{"8"}, "Aborted STALE_TOKEN 8<9"},
		{"-", nil, "InvalidArgument MISSING_TOKEN"},
		{"-", []string{"9", "9"}, "InvalidArgument INVALID_TOKEN"},
		{"-", []string{""}, "InvalidArgument INVALID_TOKEN"},
		{"-", []string{"0"}, "InvalidArgument INVALID_TOKEN"},
		{"-", []string{"-1"}, "InvalidArgument INVALID_TOKEN"},
		{"-", []string{"+9"}, "InvalidArgument INVALID_TOKEN"},
		{"-", []string{"09"}, "InvalidArgument INVALID_TOKEN"},
		{"-", []string{"9.0"}, "InvalidArgument INVALID_TOKEN"},
		{"-", []string{"0x9"}, "InvalidArgument INVALID_TOKEN"},
		{"-", []string{"9, 10"}, "InvalidArgument INVALID_TOKEN"},
		{"-", []string{"9007199254740992"}, "InvalidArgument INVALID_TOKEN"},
		{"-", []string{"99999999999999999999"}, "InvalidArgument INVALID_TOKEN"},
		{"-", []string{"9007199254740991"}, "InvalidArgument INVALID_TOKEN"}, // no service can have drawn it
		{"5", []string{"9"}, "OK"},
	} {
		want(t, strings.Join(c.tokens, "+"), s.put(bounded(t), c.text, c.tokens...), c.want)
	}
	if got := s.content(); got != "1 2 3 4 5" {
		t.Errorf("kept: %s", got)
	}
	if s.log.Len() > 0 {
		t.Errorf("logged: %s", s.log.String())
	}
}

func TestAStreamIsFencedAsACallIs(t *testing.T) {
	t.Parallel()
	s := newShelf(t, pgtest.DB(t).Pool(t), nil)
	for _, c := range []struct{ token, want string }{
		{"7", "OK"},
		{"6", "Aborted STALE_TOKEN 6<7"},
		{"", "InvalidArgument MISSING_TOKEN"},
		{"07", "InvalidArgument INVALID_TOKEN"},
		{"7", "OK"},
	} {
		n, err := s.pour(bounded(t), c.token, "x"+c.token, "y"+c.token)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		want(t, "token "+c.token, err, c.want)
		if (err == nil) != (n == 2) {
			t.Errorf("token %q: %d messages confirmed, then %v", c.token, n, err)
		}
	}
	want(t, "a call after it", s.put(bounded(t), "-", "6"), "Aborted STALE_TOKEN 6<7")
	if got := s.content(); got != "x7 y7 x7 y7" {
		t.Errorf("kept: %s", got)
	}
}

// An interrupted is a pool before whose second transaction something happens.
type interrupted struct {
	*pgxpool.Pool
	begun  int
	happen func()
}

func (i *interrupted) BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error) {
	if i.begun++; i.begun == 2 {
		i.happen()
	}
	return i.Pool.BeginTx(ctx, o)
}

func TestATokenThatIsOvertakenBeforeItsHandlerRunsIsStale(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	conn := d.Conn(t)
	raise := func() {
		if _, err := conn.Exec(bounded(t), `SELECT pglock.fence_raise('a', 'billing', 0, 8)`); err != nil {
			t.Error(err)
		}
	}
	s := newShelf(t, &interrupted{Pool: d.Pool(t), happen: raise}, nil)
	want(t, "a later token between raising and holding", s.put(bounded(t), "-", "7"), "Aborted STALE_TOKEN 7<8")
	if got := s.content(); got != "" {
		t.Errorf("kept: %s", got)
	}
}

func TestAnOpenMethodNeedsNoToken(t *testing.T) {
	t.Parallel()
	s := newShelf(t, pgtest.DB(t).Pool(t), nil)
	_, err := s.client.EmptyCall(bounded(t), &grpc_testing.Empty{})
	want(t, "without a token", err, "OK")
}

func TestAResourceOfAnotherLockIsToldApart(t *testing.T) {
	t.Parallel()
	s := newShelf(t, pgtest.DB(t).Pool(t), nil)
	want(t, "another lock", s.put(metadata.AppendToOutgoingContext(bounded(t), "lock", "reports"), "1", "3"), "OK")
	err := s.put(bounded(t), "-", "7")
	want(t, "billing", err, "FailedPrecondition OTHER_LOCK")
	if !strings.Contains(s.log.String(), "reports") || strings.Contains(err.Error(), "reports") {
		t.Errorf("the log: %s; the answer: %v", s.log.String(), err)
	}
}

// Whoever calls may choose what the call is about: what can have no fence is the caller's mistake, and no outage.
func TestWhatCanHaveNoFenceIsRefused(t *testing.T) {
	t.Parallel()
	s := newShelf(t, pgtest.DB(t).Pool(t), nil)
	for what, text := range map[string]string{"empty": "/x", "too long": strings.Repeat("x", 1025) + "/x", "NUL": "a\x00b/x", "no UTF-8": "\xff/x"} {
		want(t, what, s.put(bounded(t), text, "7"), "InvalidArgument INVALID_RESOURCE")
	}
	ctx := metadata.AppendToOutgoingContext(bounded(t), "lock", strings.Repeat("x", 256))
	want(t, "a lock too long", s.put(ctx, "x", "7"), "InvalidArgument INVALID_RESOURCE")
	if s.log.Len() > 0 || s.content() != "" {
		t.Errorf("kept %q, logged %s", s.content(), s.log.String())
	}
}

// A later token waits for the handler of an earlier one, so their effects come in order; so it does if the client has gone, and
// if it was a stream.
func TestTheFenceIsHeldThroughTheHandler(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		call func(s *shelf, ctx context.Context) error
		gone bool
	}{
		"a call":                        {func(s *shelf, ctx context.Context) error { return s.put(ctx, "gate", "7") }, false},
		"a call whose client has gone":  {func(s *shelf, ctx context.Context) error { return s.put(ctx, "gate", "7") }, true},
		"a stream":                      {func(s *shelf, ctx context.Context) error { _, err := s.pour(ctx, "7", "gate"); return err }, false},
		"a stream whose client is gone": {func(s *shelf, ctx context.Context) error { _, err := s.pour(ctx, "7", "gate"); return err }, true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			g, gone := newGate(), make(chan struct{})
			s := newShelf(t, d.Pool(t), func(ctx context.Context, text string) error {
				if text == "gate" && c.gone {
					defer func() { <-ctx.Done(); close(gone) }()
				}
				g.pass(text)
				return nil
			})
			ctx, cancel := context.WithCancel(bounded(t))
			defer cancel()
			first, next := make(chan error, 1), make(chan error, 1)
			go func() { first <- c.call(s, ctx) }()
			happens(t, "the handler runs", g.in)
			if c.gone {
				cancel()
				want(t, "the client that has gone", happens(t, "its end", first), "Canceled")
			}
			go func() { next <- s.put(bounded(t), "8", "8") }()
			d.WaitFor(t, pgtest.Waiting)
			if got := s.content(); got != "" {
				t.Errorf("kept meanwhile: %s", got)
			}
			close(g.on)
			if c.gone {
				happens(t, "the server hears of it", gone)
				want(t, "the server's answer", happens(t, "it", s.outcome), "Canceled")
			} else if err := happens(t, "the answer", first); err != nil && !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			want(t, "the later token", happens(t, "the answer", next), "OK")
			if got := s.content(); got != "gate 8" || s.log.Len() > 0 {
				t.Errorf("kept: %s; logged: %s", got, s.log.String())
			}
		})
	}
}

func TestTheSameTokenRunsBesideItself(t *testing.T) {
	t.Parallel()
	g := newGate()
	s := newShelf(t, pgtest.DB(t).Pool(t), func(_ context.Context, text string) error { g.pass(text); return nil })
	first := make(chan error, 1)
	go func() { first <- s.put(bounded(t), "gate", "7") }()
	happens(t, "the handler runs", g.in)
	want(t, "beside it", s.put(bounded(t), "beside", "7"), "OK")
	close(g.on)
	want(t, "the first", happens(t, "the answer", first), "OK")
	if got := s.content(); got != "beside gate" {
		t.Errorf("kept: %s", got)
	}
}

// A token whose time to wait is over, or whose client goes away, has never reached the handler.
func TestAWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	g := newGate()
	s := newShelf(t, d.Pool(t), func(_ context.Context, text string) error { g.pass(text); return nil })
	first := make(chan error, 1)
	go func() { first <- s.put(bounded(t), "gate", "7") }()
	happens(t, "the handler runs", g.in)

	// Without a client, which would not wait for the answer.
	until, cancel := context.WithTimeout(metadata.NewIncomingContext(t.Context(), metadata.Pairs(fencegrpc.Key, "8")), time.Second)
	defer cancel()
	_, err := s.guard.Unary()(until, &grpc_testing.SimpleRequest{Payload: body("a/-")}, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) {
		t.Error("it has reached the handler")
		return nil, nil
	})
	want(t, "a deadline", err, "DeadlineExceeded")

	ctx, goAway := context.WithCancel(bounded(t))
	second := make(chan error, 1)
	go func() { second <- s.put(ctx, "-", "9") }()
	d.WaitFor(t, pgtest.Waiting)
	goAway()
	want(t, "one that goes away", happens(t, "its end", second), "Canceled")
	want(t, "the server's answer to it", happens(t, "it", s.outcome), "Canceled")
	close(g.on)
	want(t, "the first", happens(t, "the answer", first), "OK")
	if got := s.content(); got != "gate" || s.log.Len() > 0 {
		t.Errorf("kept: %s; logged: %s", got, s.log.String())
	}
}

// What a handler or its connection comes to does not lower the fence.
func TestTheFenceStaysWhateverBecomesOfTheHandler(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		end  func() error
		want string
	}{
		"it panics":  {func() error { panic("oh") }, "Internal"},
		"it fails":   {func() error { return status.Error(codes.NotFound, "the shelf is full") }, "NotFound"},
		"it is well": {func() error { return nil }, "OK"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			pool := d.Pool(t)
			s := newShelf(t, pool, func(_ context.Context, text string) error {
				if text == "end" {
					return c.end()
				}
				return nil
			})
			err := s.put(bounded(t), "end", "7")
			want(t, "the answer", err, c.want)
			if c.want == "NotFound" && status.Convert(err).Message() != "the shelf is full" {
				t.Errorf("the handler's error came as %v", err)
			}
			want(t, "an earlier token", s.put(bounded(t), "-", "6"), "Aborted STALE_TOKEN 6<7")
			want(t, "a later one", s.put(bounded(t), "8", "8"), "OK")
			if n := pool.Stat().AcquiredConns(); n != 0 {
				t.Errorf("%d connections are not given back", n)
			}
		})
	}
}

// Whoever was not under the fence to the end is told, though it has run, and what a stream has sent stays sent.
func TestALostFenceIsAnError(t *testing.T) {
	t.Parallel()
	for what, call := range map[string]func(s *shelf, ctx context.Context) (int, error){
		"a call":   func(s *shelf, ctx context.Context) (int, error) { return 1, s.put(ctx, "gate", "7") },
		"a stream": func(s *shelf, ctx context.Context) (int, error) { return s.pour(ctx, "7", "gate") },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			g := newGate()
			s := newShelf(t, d.Pool(t), func(_ context.Context, text string) error { g.pass(text); return nil })
			first := make(chan error, 1)
			go func() {
				n, err := call(s, bounded(t))
				if n != 1 {
					t.Errorf("%d messages confirmed, want 1", n)
				}
				first <- err
			}()
			happens(t, "the handler runs", g.in)
			if n := d.KillBackends(t, `state = 'idle in transaction'`); n != 1 {
				t.Errorf("%d connections hold a fence, want 1", n)
			}
			want(t, "a later token beside it", s.put(bounded(t), "8", "8"), "OK")
			close(g.on)
			err := happens(t, "the answer", first)
			want(t, "the first", err, "Unknown FENCE_LOST")
			if got := s.content(); got != "8 gate" || !strings.Contains(s.log.String(), "before the handler had ended") {
				t.Errorf("kept: %s; logged: %s", got, s.log.String())
			}
			want(t, "an earlier token", s.put(bounded(t), "-", "6"), "Aborted STALE_TOKEN 6<8")
		})
	}
}

func TestAGuardWithoutItsDatabaseLetsNothingThrough(t *testing.T) {
	t.Parallel()
	for what, spoil := range map[string]func(*pgtest.Database, *pgtest.Proxy){
		"gone":         func(_ *pgtest.Database, p *pgtest.Proxy) { p.Refuse(true); p.Cut() },
		"not migrated": func(d *pgtest.Database, _ *pgtest.Proxy) { d.Exec(t, `DROP SCHEMA pglock CASCADE`) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			proxy := pgtest.NewProxy(t, d)
			pool, err := pgxpool.New(bounded(t), proxy.URL())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			s := newShelf(t, pool, nil)
			want(t, "before", s.put(bounded(t), "1", "7"), "OK")
			spoil(d, proxy)
			err = s.put(bounded(t), "-", "8")
			want(t, "then", err, "Unavailable UNAVAILABLE")
			_, err = s.pour(bounded(t), "8", "-")
			want(t, "a stream", err, "Unavailable UNAVAILABLE")
			if got := s.content(); got != "1" || !strings.Contains(s.log.String(), "the fence cannot be asked") {
				t.Errorf("kept: %s; logged: %s", got, s.log.String())
			}
			if strings.Contains(err.Error(), "schema") || strings.Contains(err.Error(), "127.0.0.1") {
				t.Errorf("the answer tells too much: %v", err)
			}
			proxy.Refuse(false)
		})
	}
}

// A late context ends a moment after its deadline, as real ones do: an error of the network may be there before.
type late struct{ context.Context }

func (late) Deadline() (time.Time, bool) { return time.Now(), true }

// A slow database cannot be reached before the deadline.
type slow struct{}

func (slow) BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error) {
	return nil, &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
}

func TestADialThatTheDeadlineEndsIsNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		guard := fencegrpc.Guard{
			DB:     slow{},
			Fence:  func(context.Context, string, any) (lock, resource string) { return "billing", "a" },
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		}
		ctx, cancel := context.WithTimeout(metadata.NewIncomingContext(t.Context(), metadata.Pairs(fencegrpc.Key, "7")), time.Millisecond)
		defer cancel()
		_, err := guard.Unary()(late{ctx}, nil, &grpc.UnaryServerInfo{}, nil)
		if want(t, "the answer", err, "DeadlineExceeded"); log.Len() > 0 {
			t.Errorf("logged: %s", log.String())
		}
	})
}

func TestAGuardWithoutItsPartsPanicsAtOnce(t *testing.T) {
	t.Parallel()
	for what, build := range map[string]func(){
		"Unary":  func() { fencegrpc.Guard{}.Unary() },
		"Stream": func() { fencegrpc.Guard{DB: &pgxpool.Pool{}}.Stream() },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", what)
				}
			}()
			build()
		}()
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
	during := ""
	s := newShelf(t, db, func(ctx context.Context, _ string) error {
		const limits = `SELECT current_setting('idle_in_transaction_session_timeout') || ' ' || coalesce(current_setting('transaction_timeout', true), '0')`
		return db.tx.QueryRow(ctx, limits).Scan(&during)
	})
	want(t, "the call", s.put(bounded(t), "-", "7"), "OK")
	if during != "0 0" {
		t.Errorf("the limits are %q in the handler", during)
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

// A database that goes silent while a handler runs does not keep the client waiting: it hears that the fence may be lost.
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
	s := newShelf(t, pool, func(context.Context, string) error {
		proxy.Stall(pgtest.Both)
		return nil
	})
	want(t, "the call", s.put(bounded(t), "7", "7"), "Unknown FENCE_LOST")
	if got := s.content(); got != "7" {
		t.Errorf("kept: %s", got)
	}
}
