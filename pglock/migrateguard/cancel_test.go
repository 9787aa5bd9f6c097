package migrateguard_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/fencedlock/fencedlock/pglock/advisory"
	"github.com/fencedlock/fencedlock/pglock/migrateguard"
)

// ctx ends in the middle of a migration: the SQL is cancelled, the lock given back, and the version dirty.
func TestACancelledMigration(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	newGate(t, d)
	g := open(t, d.URL, files(t, "1_a.up.sql", gated, "2_b.up.sql", "SELECT 1"), migrateguard.Config{})
	why := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(soon(t))
	runner := async(func() error { return g.Up(ctx) })
	atWork(t, d)
	cancel(why)
	err := happens(t, "Up ends", runner)
	wantErr(t, "Up", err, why)
	wantErr(t, "Up", err, migrateguard.ErrDirty, "Force(-1)")
	nothingLeft(t, d)
	wantVersion(t, d, "1 dirty")
}

// ctx ends between two: the version is clean.
func TestACancelledCallBetweenTwoMigrations(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, runs)
	ctx, cancel := context.WithCancel(soon(t))
	g := open(t, d.URL, three(t), migrateguard.Config{Notify: func(e migrateguard.Event) {
		if e.Kind == migrateguard.Finished && e.K == 2 {
			cancel()
		}
	}})
	err := g.Up(ctx)
	wantErr(t, "Up", err, context.Canceled, "stopped before migration 3 of 3, 3_last")
	if errors.Is(err, migrateguard.ErrDirty) {
		t.Errorf("Up = %v, which is not dirty", err)
	}
	wantVersion(t, d, "2")
	nothingLeft(t, d)
}

// Calls that end at any moment, by their ctx or by their limit, in both kinds of lock, leave no lock behind. 5 rounds of
// two calls, or 1000 in the long mode.
func TestCallsThatEndAtAnyMomentLeaveNoLock(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test
	t.Logf("seed %d", seed)
	src := files(t, "1_a.up.sql", "SELECT pg_sleep(0.05)", "1_a.down.sql", "SELECT 1", "2_b.up.sql", "SELECT pg_sleep(0.05)", "2_b.down.sql", "SELECT 1")
	kinds := map[string]int{}
	for round := range pgtest.Rounds(5, 1000) {
		session := round%2 == 0
		first, second := time.Duration(rnd.IntN(600))*time.Millisecond, time.Duration(1+rnd.IntN(100))*time.Millisecond
		ctx, cancel := context.WithTimeout(soon(t), first)
		errs := together(2, func(i int) error {
			if i == 0 {
				return open(t, d.URL, src, migrateguard.Config{Session: session}).Up(ctx)
			}
			return open(t, d.URL, src, migrateguard.Config{Session: session, Wait: second}).Up(soon(t))
		})
		cancel()
		for _, err := range errs {
			kinds[kind(err)]++
			if kind(err) == "other" {
				t.Fatalf("round %d: %v", round, err)
			}
		}
		nothingLeft(t, d)
		d.Exec(t, `CREATE TABLE IF NOT EXISTS schema_migrations (version bigint not null primary key, dirty boolean not null); DELETE FROM schema_migrations`)
	}
	t.Log(kinds)
}

// kind is how a call ended.
func kind(err error) string {
	switch {
	case err == nil:
		return "migrated"
	case errors.Is(err, migrateguard.ErrDirty):
		return "dirty"
	case errors.Is(err, migrateguard.ErrBusy) && (errors.Is(err, pglock.ErrHeld) || errors.Is(err, advisory.ErrHeld)):
		return "busy"
	case errors.Is(err, migrateguard.ErrBusy), errors.Is(err, context.DeadlineExceeded):
		return "cancelled"
	}
	return "other"
}

// A canceller ends a context when a statement that contains a text has ended, and before the next one is sent.
type canceller struct {
	text   string
	cancel context.CancelFunc
}

type statement struct{}

func (c *canceller) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, statement{}, data.SQL)
}

func (c *canceller) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if sql, _ := ctx.Value(statement{}).(string); strings.Contains(sql, c.text) {
		c.cancel()
	}
}

// ctx ends while the lease is asked for, which nobody holds: that is not told as somebody else's migration.
func TestACancelledCallBesideNobodyIsNotBusy(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"pg_catalog.pg_class c JOIN", "SELECT c.cap_us", "SELECT ord, status"} {
		d := pgtest.DB(t)
		ctx, cancel := context.WithCancel(soon(t))
		pool := poolAs(t, d.URL, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &canceller{text, cancel} })
		g, err := migrateguard.New(pool, files(t, "1_a.up.sql", "SELECT pg_sleep(0.2)"), migrateguard.Config{})
		must(t, "New", err)
		err = g.Up(ctx)
		wantErr(t, "Up", err, context.Canceled)
		if errors.Is(err, migrateguard.ErrBusy) {
			t.Errorf("Up, cancelled after %q = %v", text, err)
		}
		nothingLeft(t, d)
	}
}

// ctx ends just after a migration has run, and it is recorded all the same; or just before, and nothing was done.
func TestACallThatIsCancelledBesideAMigration(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ text, want string }{
		"after it":                       {"INSERT INTO public.runs", "1"},
		"before it, when it was marked":  {"INSERT INTO \"public\"", "nothing"},
		"before it, when it was written": {"commit", "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			d.Exec(t, runs)
			ctx, cancel := context.WithCancel(soon(t))
			pool := poolAs(t, d.URL, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &canceller{test.text, cancel} })
			g, err := migrateguard.New(pool, files(t, "1_a.up.sql", "INSERT INTO public.runs VALUES (1)", "2_b.up.sql", "INSERT INTO public.runs VALUES (2)"),
				migrateguard.Config{Session: true})
			must(t, "New", err)
			err = g.Up(ctx)
			wantErr(t, "Up", err, context.Canceled)
			if errors.Is(err, migrateguard.ErrDirty) {
				t.Errorf("Up = %v, which is not dirty", err)
			}
			wantVersion(t, d, test.want)
			nothingLeft(t, d)
		})
	}
}
