package migrateguard_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/fencedlock/fencedlock/pglock/advisory"
	"github.com/fencedlock/fencedlock/pglock/migrateguard"
)

var errPooler, advisoryHeld = advisory.ErrPooler, advisory.ErrHeld

// A waiter waits for as long as the holder is alive, is told who that is, and then finds nothing to do.
func TestAWaiterOutwaitsTheTTL(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	gate := newGate(t, d)
	src := []string{"1_a.up.sql", gated, "2_b.up.sql", "INSERT INTO public.runs VALUES (2)"}
	const ttl = 5 * time.Second // a machine that stands still for that long would lose it
	runner := async(func() error {
		return open(t, d.URL, files(t, src...), migrateguard.Config{Lease: pglock.Config{Owner: "the runner", TTL: ttl}}).Up(soon(t))
	})
	atWork(t, d)
	told, notify := events()
	waiter := async(func() error {
		return open(t, d.URL, files(t, src...), migrateguard.Config{Notify: notify}).Up(soon(t))
	})
	e := next(t, told, migrateguard.Waiting)
	wantErr(t, "the reason for waiting", e.Err, pglock.ErrHeld, "the runner", "since")
	d.WaitFor(t, `SELECT clock_timestamp() > granted_at + ttl FROM pglock.leases`)
	select {
	case err := <-waiter:
		t.Fatalf("the waiter did not wait: %v", err)
	default:
	}
	gate.release()
	must(t, "Up of the runner", happens(t, "the runner ends", runner))
	must(t, "Up of the waiter", happens(t, "the waiter ends", waiter))
	wantVersion(t, d, "2")
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM runs`); n != 1 {
		t.Errorf("the second migration ran %d times", n)
	}
}

func TestAWaitEndsAtItsLimitAndWithItsContext(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct {
		name, holder string
		cfg          migrateguard.Config
		held         error
	}{
		{"lease", "the runner", migrateguard.Config{}, pglock.ErrHeld},
		{"session", "pglock/migrateguard", migrateguard.Config{Session: true}, advisory.ErrHeld},
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			gate := newGate(t, d)
			cfg := kind.cfg
			cfg.Lease.Owner = "the runner"
			runner := async(func() error { return open(t, d.URL, files(t, "1_a.up.sql", gated), cfg).Up(soon(t)) })
			atWork(t, d)

			cfg = kind.cfg
			cfg.Wait = 2 * time.Second
			began := time.Now()
			err := open(t, d.URL, files(t, "1_a.up.sql", gated), cfg).Up(soon(t))
			wantErr(t, "Up with a limit", err, migrateguard.ErrBusy, kind.holder, "the limit of 2s is over")
			wantErr(t, "Up with a limit", err, context.DeadlineExceeded)
			wantErr(t, "Up with a limit", err, kind.held)
			if d := time.Since(began); d < 2*time.Second {
				t.Errorf("it waited for %v, less than the limit", d)
			}

			why := errors.New("shutting down")
			ctx, cancel := context.WithCancelCause(soon(t))
			told, notify := events()
			cfg.Wait, cfg.Notify = 0, notify
			waiter := async(func() error { return open(t, d.URL, files(t, "1_a.up.sql", gated), cfg).Up(ctx) })
			next(t, told, migrateguard.Waiting)
			cancel(why)
			err = happens(t, "the waiter ends", waiter)
			wantErr(t, "Up that was cancelled", err, why, kind.holder)
			wantErr(t, "Up that was cancelled", err, migrateguard.ErrBusy)

			gate.release()
			must(t, "Up of the runner", happens(t, "the runner ends", runner))
			nothingLeft(t, d)
		})
	}
}

// Two schemas or tables have two locks. The migrations of one can do all they want while the other is at work.
func TestEachVersionTableHasItsLock(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	gate := newGate(t, d)
	d.Exec(t, `CREATE SCHEMA "an ""other"; CREATE SCHEMA "a.b"; CREATE SCHEMA a`)
	runner := async(func() error { return open(t, d.URL, files(t, "1_a.up.sql", gated), migrateguard.Config{}).Up(soon(t)) })
	atWork(t, d)
	for _, other := range []migrateguard.Config{
		{Table: "other"},
		{Schema: `an "other`},
		{Schema: "a.b", Table: "c"},
		{Schema: "a", Table: "b.c", Session: true},
	} {
		must(t, fmt.Sprintf("Up with %q %q", other.Schema, other.Table), open(t, d.URL, files(t, "1_a.up.sql", "SELECT 1"), other).Up(soon(t)))
	}
	same := migrateguard.Config{Schema: "public", Table: "schema_migrations", Wait: 2 * time.Second}
	wantErr(t, "Up with the same table", open(t, d.URL, files(t, "1_a.up.sql", gated), same).Up(soon(t)), migrateguard.ErrBusy)
	gate.release()
	must(t, "Up of the runner", happens(t, "the runner ends", runner))
}

// A schema has one name, and so one lock, whatever client_encoding a role, the pool or a hook has set.
func TestAVersionTableHasOneLockInAnyEncoding(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]migrateguard.Config{"lease": {}, "session": {Session: true}, "named": {Schema: "é"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			gate := newGate(t, d)
			role := d.Role(t)
			d.Exec(t, `CREATE SCHEMA "é"; ALTER ROLE "`+role+`" SUPERUSER; ALTER ROLE "`+role+`" SET client_encoding = 'LATIN1'`)
			path := func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["search_path"] = `"é", public` }
			guard := func(pool *pgxpool.Pool) *migrateguard.Guard {
				g, err := migrateguard.New(pool, files(t, "1_a.up.sql", gated), cfg)
				must(t, "New", err)
				return g
			}
			runner := async(func() error { return guard(poolAs(t, d.URL, path)).Up(soon(t)) })
			atWork(t, d)
			cfg.Wait = 2 * time.Second
			for what, pool := range map[string]*pgxpool.Pool{
				"the role": poolAs(t, d.URLAs(role), path),
				"the pool": poolAs(t, d.URL, func(c *pgxpool.Config) { path(c); c.ConnConfig.RuntimeParams["client_encoding"] = "LATIN1" }),
				"a hook": poolAs(t, d.URL, func(c *pgxpool.Config) {
					path(c)
					c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
						_, err := conn.Exec(ctx, "SET client_encoding = 'LATIN1'")
						return err
					}
				}),
			} {
				wantErr(t, "Up where "+what+" has another encoding", guard(pool).Up(soon(t)), migrateguard.ErrBusy)
			}
			gate.release()
			must(t, "Up of the runner", happens(t, "the runner ends", runner))
		})
	}
}

// A session and a lease know of each other: replicas may change from one to the other.
func TestASessionLockAndALeaseExcludeEachOther(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	gate := newGate(t, d)
	runner := async(func() error {
		return open(t, d.URL, files(t, "1_a.up.sql", gated), migrateguard.Config{Session: true}).Up(soon(t))
	})
	atWork(t, d)
	err := open(t, d.URL, files(t, "1_a.up.sql", gated), migrateguard.Config{Wait: 2 * time.Second}).Up(soon(t))
	wantErr(t, "Up beside a session lock", err, migrateguard.ErrBusy, "pg_terminate_backend")
	gate.release()
	must(t, "Up of the runner", happens(t, "the runner ends", runner))
}
