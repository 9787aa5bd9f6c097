package advisory_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock/advisory"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// patience bounds what must happen soon. It is long because it ends only tests that fail anyway.
const patience = 15 * time.Second

// soon is a context for what must happen soon.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// long is one for loops.
func long(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// open makes a client and closes it when the test ends.
func open(t testing.TB, url string, cfg advisory.Config) *advisory.Client {
	t.Helper()
	c, err := advisory.Open(url, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(soon(t)); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return c
}

// client is open on a database of the test.
func client(t testing.TB, d *pgtest.Database) *advisory.Client {
	t.Helper()
	return open(t, d.URL, advisory.Config{})
}

// ofPool is a client of a pool with that configuration.
func ofPool(t testing.TB, pc *pgxpool.Config) (*advisory.Client, *pgxpool.Pool) {
	t.Helper()
	pool, err := pgxpool.NewWithConfig(context.Background(), pc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	c, err := advisory.New(pool, advisory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { wantErr(t, "Close", c.Close(soon(t)), nil) })
	return c, pool
}

func poolConfig(t testing.TB, url string) *pgxpool.Config {
	t.Helper()
	pc, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	return pc
}

// nowhere is a client whose server does not exist: what it answers, it answers without a database.
func nowhere(t testing.TB) *advisory.Client {
	t.Helper()
	return open(t, "postgres://nobody@127.0.0.1:1/none", advisory.Config{})
}

// take acquires a lock that is free.
func take(t testing.TB, c *advisory.Client, key advisory.Key, opts ...advisory.Option) *advisory.Lock {
	t.Helper()
	l, err := c.TryAcquire(soon(t), key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func release(t testing.TB, l *advisory.Lock) {
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

// refused checks that a client does not get a lock, because another holds it, and answers who that is.
func refused(t testing.TB, c *advisory.Client, key advisory.Key, opts ...advisory.Option) *advisory.HeldError {
	t.Helper()
	l, err := c.TryAcquire(soon(t), key, opts...)
	var held *advisory.HeldError
	if !errors.As(err, &held) || !errors.Is(err, advisory.ErrHeld) || l != nil {
		t.Fatalf("TryAcquire = %v, want a *HeldError", err)
	}
	return held
}

// happens waits for an event.
func happens[T any](t testing.TB, what string, event <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-event:
	case <-time.After(patience):
		t.Fatalf("not within %v: %s", patience, what)
	}
	return v
}

// async runs a call in a goroutine, and hands over what it answers.
func async[T any](f func() T) <-chan T {
	answer := make(chan T, 1)
	go func() { answer <- f() }()
	return answer
}

// An acquired is what an acquiring call answered.
type acquired struct {
	lock *advisory.Lock
	err  error
}

// acquiring runs Acquire in a goroutine.
func acquiring(ctx context.Context, c *advisory.Client, key advisory.Key, opts ...advisory.Option) <-chan acquired {
	return async(func() acquired {
		l, err := c.Acquire(ctx, key, opts...)
		return acquired{l, err}
	})
}

// granted waits for an Acquire to come back with a lock.
func granted(t testing.TB, a <-chan acquired) *advisory.Lock {
	t.Helper()
	got := happens(t, "Acquire comes back", a)
	if got.err != nil {
		t.Fatalf("Acquire: %v", got.err)
	}
	return got.lock
}

// lostIn waits for the end of a lock, and checks that it is a loss.
func lostIn(t testing.TB, l *advisory.Lock) *advisory.LostError {
	t.Helper()
	happens(t, "the end of the lock", l.Context().Done())
	var lost *advisory.LostError
	if cause := context.Cause(l.Context()); !errors.As(cause, &lost) || !errors.Is(cause, advisory.ErrLost) {
		t.Fatalf("the lock ended with %v, want a *LostError", cause)
	}
	return lost
}

// noLocks is a query for WaitFor: no advisory lock is held or waited for in this database.
const noLocks = `SELECT NOT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
	WHERE l.locktype = 'advisory' AND d.datname = current_database())`

// someLock is its opposite.
const someLock = `SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
	WHERE l.locktype = 'advisory' AND d.datname = current_database())`

// locks counts the advisory locks of the database.
func locks(t testing.TB, d *pgtest.Database) int {
	t.Helper()
	return pgtest.Query[int](t, d, `SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
		WHERE l.locktype = 'advisory' AND d.datname = current_database()`)
}

// marked is a query for WaitFor: somebody waits in Client.Acquire.
const marked = `SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
	WHERE l.locktype = 'advisory' AND d.datname = current_database() AND l.objsubid = 2 AND l.classid = 3039031241)`

// A txKind is a way to have a transaction. What holds for one must hold for the other.
type txKind struct {
	name  string
	begin func(t testing.TB, url string) *tx
}

// A tx is a transaction of either kind.
type tx struct {
	advisory.Tx
	exec     func(sql string) error
	show     func(sql string) (string, error)
	rollback func()
}

var txKinds = []txKind{{"pgx", beginPgx}, {"database/sql", beginSQL}}

func beginPgx(t testing.TB, url string) *tx {
	t.Helper()
	conn, err := pgx.Connect(soon(t), url)
	if err != nil {
		t.Fatal(err)
	}
	inner, err := conn.Begin(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	rollback := func() { _ = inner.Rollback(context.Background()) }
	t.Cleanup(func() { rollback(); _ = conn.Close(context.Background()) })
	return &tx{
		Tx:       advisory.InTx(inner),
		exec:     func(sql string) error { _, err := inner.Exec(soon(t), sql); return err },
		show:     func(sql string) (s string, err error) { return s, inner.QueryRow(soon(t), sql).Scan(&s) },
		rollback: rollback,
	}
}

func beginSQL(t testing.TB, url string) *tx {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	inner, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	rollback := func() { _ = inner.Rollback() }
	t.Cleanup(func() { rollback(); db.Close() })
	return &tx{
		Tx:       advisory.InSQLTx(inner),
		exec:     func(sql string) error { _, err := inner.ExecContext(soon(t), sql); return err },
		show:     func(sql string) (s string, err error) { return s, inner.QueryRowContext(soon(t), sql).Scan(&s) },
		rollback: rollback,
	}
}

// state is the code of PostgreSQL's error; "" for another.
func state(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}
