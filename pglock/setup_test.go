package pglock_test

import (
	"context"
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// patience bounds what must happen soon. It is long because it ends only tests that fail anyway.
const patience = 10 * time.Second

// open makes a client and closes it when the test ends.
func open(t testing.TB, url string, cfg pglock.Config) *pglock.Client {
	t.Helper()
	c, err := pglock.Open(url, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := c.Close(ctx); err != nil && !errors.Is(err, pglock.ErrNotReleased) {
			t.Errorf("Close: %v", err)
		}
	})
	return c
}

// client is open on a database of the test.
func client(t testing.TB, d *pgtest.Database) *pglock.Client {
	t.Helper()
	return open(t, d.URL, pglock.Config{})
}

// ofPool is a client of a pool with that configuration.
func ofPool(t testing.TB, pc *pgxpool.Config, cfg pglock.Config) *pglock.Client {
	t.Helper()
	pool, err := pgxpool.NewWithConfig(context.Background(), pc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	c, err := pglock.New(pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { wantErr(t, "Close", c.Close(soon(t)), nil) })
	return c
}

// nowhere is a client whose server does not exist: what it answers, it answers without a database.
func nowhere(t testing.TB) *pglock.Client {
	t.Helper()
	return open(t, "postgres://nobody@127.0.0.1:1/none", pglock.Config{})
}

// with adds settings to a database's URL.
func with(t testing.TB, raw string, settings ...string) string {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	for i := 0; i < len(settings); i += 2 {
		q.Set(settings[i], settings[i+1])
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// soon is a context for what must happen soon.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// slow is a context for what a server does when it starts.
func slow(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// take acquires a lock that is free.
func take(t testing.TB, c *pglock.Client, name string, opts ...pglock.Option) *pglock.Lease {
	t.Helper()
	l, err := c.TryAcquire(soon(t), name, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func release(t testing.TB, l *pglock.Lease) {
	t.Helper()
	if err := l.Release(soon(t)); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

// wantErr checks an error against a sentinel, or nil.
func wantErr(t testing.TB, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s = %v, want %v", what, got, want)
	}
}

// refused checks that a client is not granted a lock, because another holds it.
func refused(t testing.TB, c *pglock.Client, name string) *pglock.HeldError {
	t.Helper()
	l, err := c.TryAcquire(soon(t), name)
	if err == nil {
		t.Fatalf("a second holder of %q: %v", name, l)
	}
	var held *pglock.HeldError
	if !errors.As(err, &held) || !errors.Is(err, pglock.ErrHeld) {
		t.Fatalf("TryAcquire of a held lock = %v, want a *HeldError", err)
	}
	return held
}

// happens waits for a channel to be closed, or to have something.
func happens[T any](t testing.TB, what string, event <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-event:
	case <-time.After(patience):
		t.Fatalf("not within %v: %s", patience, what)
	}
	return v
}

// wantLoss checks that a lease ends, for that reason, in all the ways that tell of it.
func wantLoss(t testing.TB, l *pglock.Lease, cause pglock.LossCause) {
	t.Helper()
	happens(t, "the end of "+l.String(), l.Done())
	for what, err := range map[string]error{"Err": l.Err(), "the cause of the context": context.Cause(l.Context())} {
		var lost *pglock.LostError
		if !errors.As(err, &lost) || !errors.Is(err, pglock.ErrLost) {
			t.Errorf("%s of %v = %v, want a *LostError", what, l, err)
			continue
		}
		if lost.Cause != cause || lost.Token != l.Token() || lost.Name != l.Name() {
			t.Errorf("%s of %v = %v, want %s", what, l, err, cause)
		}
	}
	if l.Valid() || !l.Deadline().IsZero() {
		t.Errorf("%v is lost, and valid %v until %v", l, l.Valid(), l.Deadline())
	}
}

// row is a lease row as text, with everything that is in it; "" if there is none.
func row(t testing.TB, d *pgtest.Database, name string) string {
	t.Helper()
	return pgtest.Query[string](t, d, `SELECT coalesce((SELECT l::text FROM pglock.leases l WHERE name = $1), '')`, name)
}

// left is what a lease has left in the database.
func left(t testing.TB, d *pgtest.Database, name string) time.Duration {
	t.Helper()
	return pgtest.Query[time.Duration](t, d, `SELECT expires_at - clock_timestamp() FROM pglock.leases WHERE name = $1`, name)
}

// isHeld is a query for WaitFor and Query: somebody holds the lock $1.
const isHeld = `SELECT EXISTS (SELECT FROM pglock.leases WHERE name = $1 AND expires_at > clock_timestamp())`

// isFree is its opposite, where the lock was used before.
const isFree = `SELECT EXISTS (SELECT FROM pglock.leases WHERE name = $1 AND expires_at <= clock_timestamp())`

func holds(t testing.TB, d *pgtest.Database, name string) bool {
	t.Helper()
	return pgtest.Query[bool](t, d, isHeld, name)
}

// drawn is the last token that the database has drawn.
func drawn(t testing.TB, d *pgtest.Database) int64 {
	t.Helper()
	return pgtest.Query[int64](t, d, `SELECT last_value FROM pglock.fencing_token`)
}

// async runs a call in a goroutine, and hands over what it answers.
func async[T any](f func() T) <-chan T {
	answer := make(chan T, 1)
	go func() { answer <- f() }()
	return answer
}

// An acquired is what an acquiring call answered.
type acquired struct {
	lease *pglock.Lease
	err   error
}

// acquiring runs Acquire in a goroutine.
func acquiring(ctx context.Context, c *pglock.Client, name string, opts ...pglock.Option) <-chan acquired {
	return async(func() acquired {
		l, err := c.Acquire(ctx, name, opts...)
		return acquired{l, err}
	})
}

// granted waits for an Acquire to come back with a lease.
func granted(t testing.TB, a <-chan acquired) *pglock.Lease {
	t.Helper()
	got := happens(t, "Acquire comes back", a)
	if got.err != nil {
		t.Fatalf("Acquire: %v", got.err)
	}
	return got.lease
}

// state is the code of PostgreSQL's error; "" for another.
func state(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}
