package once_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/fencedlock/fencedlock/pglock/once"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// patience bounds what must happen soon. It is long because it ends only tests that fail anyway.
const patience = 30 * time.Second

// tick is an instant of everybody's schedule, and lockName is the name of its lock.
var tick = time.Date(2026, 1, 31, 4, 0, 0, 123456000, time.UTC)

const lockName = "fencedlock.once/2026-01-31T04:00:00.123456Z/report"

// runner is a replica: a client with its label, and its Runner.
func runner(t testing.TB, url, owner string, db fence.DB) *once.Runner {
	t.Helper()
	locks, err := pglock.Open(url, pglock.Config{Owner: owner})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := locks.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	runs, err := once.New(locks, db)
	if err != nil {
		t.Fatal(err)
	}
	return runs
}

// through is a pool that goes through a proxy, and whose requests all have their SQL with them, so that traps find it.
func through(t testing.TB, p *pgtest.Proxy) *pgxpool.Pool {
	t.Helper()
	pc, err := pgxpool.ParseConfig(p.URL())
	if err != nil {
		t.Fatal(err)
	}
	pc.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	pool, err := pgxpool.NewWithConfig(t.Context(), pc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func async[T any](f func() T) <-chan T {
	answer := make(chan T, 1)
	go func() { answer <- f() }()
	return answer
}

func happens[T any](t testing.TB, what string, event <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-event:
	case <-time.After(patience):
		t.Fatalf("not within %v: %s", patience, what)
	}
	return v
}

func wantErr(t testing.TB, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s = %v, want %v", what, got, want)
	}
}

// wantDuplicate checks that an occurrence was refused, because of an attempt of owner that has the outcome.
func wantDuplicate(t testing.TB, what string, err error, outcome once.Outcome, owner string) {
	t.Helper()
	d, ok := errors.AsType[*once.DuplicateError](err)
	if !ok || d.Outcome != outcome || d.Owner != owner || d.Job != "report" || !d.Due.Equal(tick) || d.Started.IsZero() {
		t.Errorf("%s = %v, want a DuplicateError: %s by %s", what, err, outcome, owner)
		return
	}
	running := outcome == once.Running
	if errors.Is(err, once.ErrRunning) != running || errors.Is(err, once.ErrRan) == running || d.Ended.IsZero() != (running || outcome == once.Unfinished) {
		t.Errorf("%s = %v: running %v, ran %v, ended %v", what, err, errors.Is(err, once.ErrRunning), errors.Is(err, once.ErrRan), d.Ended)
	}
}

// last is what is on record of the job.
func last(t testing.TB, r *once.Runner) once.Record {
	t.Helper()
	rec, err := r.Last(soon(t), "report")
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// nothing is an f that must not run.
func nothing(t testing.TB) func(context.Context, *pglock.Lease) error {
	return func(context.Context, *pglock.Lease) error {
		t.Error("f runs, and must not")
		return nil
	}
}

func does(err error) func(context.Context, *pglock.Lease) error {
	return func(context.Context, *pglock.Lease) error { return err }
}
