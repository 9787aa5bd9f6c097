package migrateguard_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock/migrateguard"
)

// replicas start n at once on an empty database, and checks that each migration ran once, and that the index is valid.
func replicas(t *testing.T, d *pgtest.Database, url string, n int, cfg migrateguard.Config) {
	t.Helper()
	d.Exec(t, runs)
	ctx := soon(t)
	errs := together(n, func(int) error { return open(t, url, three(t), cfg).Up(ctx) })
	must(t, "Up", errors.Join(errs...))
	wantVersion(t, d, "3")
	if got := pgtest.Query[string](t, d, `SELECT string_agg(version::text, ' ' ORDER BY version) FROM runs`); got != "1 3" {
		t.Errorf("the migrations that ran are %s, want each once", got)
	}
	if !pgtest.Query[bool](t, d, `SELECT indisvalid FROM pg_index WHERE indexrelid = 'books_title'::regclass`) {
		t.Error("the index is not valid")
	}
	if n := pgtest.Query[int](t, d, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
	if url == d.URL {
		nothingLeft(t, d)
	}
	noLocks(t, d)
}

// The schema that is not there yet is nothing to warn of.
func TestReplicasThatStartTogetherMigrateOnce(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]migrateguard.Config{"lease": {}, "session": {Session: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.Empty(t) // the lease's schema is installed on the way
			var warnings strings.Builder
			cfg.Logger = slog.New(slog.NewTextHandler(&warnings, &slog.HandlerOptions{Level: slog.LevelWarn})) // it has a lock of its own
			replicas(t, d, d.URL, 4, cfg)
			if warnings.Len() > 0 {
				t.Errorf("warnings:\n%s", &warnings)
			}
		})
	}
}

func TestReplicasBehindAPoolerMigrateOnce(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	url := pgtest.PgBouncer(t, d)
	replicas(t, d, url, 4, migrateguard.Config{})
}

func TestASessionLockIsRefusedBehindAPooler(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	url := pgtest.PgBouncer(t, d)
	err := open(t, url, three(t), migrateguard.Config{Session: true}).Up(soon(t))
	wantErr(t, "Up", err, errPooler, "Use the lease")
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace`); n != 0 {
		t.Errorf("%d tables were made", n)
	}
}

// A waiter has nothing that others could wait for.
func TestAWaiterHoldsNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	gate := newGate(t, d)
	src := func() *migrateguard.Guard {
		return open(t, d.URL, files(t, "1_a.up.sql", gated), migrateguard.Config{})
	}
	runner := async(func() error { return src().Up(soon(t)) })
	atWork(t, d)

	pool := poolAs(t, d.URL, func(c *pgxpool.Config) {
		c.MaxConns = 1
		c.ConnConfig.RuntimeParams["application_name"] = "waiter"
	})
	one, err := pool.Acquire(t.Context()) // the only connection is busy
	must(t, "Acquire", err)
	t.Cleanup(one.Release) // before the pool's Close, which waits for it
	told, notify := events()
	waiter, err := migrateguard.New(pool, files(t, "1_a.up.sql", gated), migrateguard.Config{Notify: notify})
	must(t, "New", err)
	done := async(func() error { return waiter.Up(soon(t)) })
	next(t, told, migrateguard.Waiting)
	// What is left is the pool's busy connection, and the client that asks for the lease, and may listen for its release.
	d.WaitFor(t, `SELECT count(*) BETWEEN 2 AND 3 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'waiter'`)
	for range 20 {
		if got := pgtest.Query[int](t, d, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'waiter'
			AND (xact_start IS NOT NULL OR backend_xmin IS NOT NULL) AND (state <> 'active' OR wait_event_type = 'Lock')`); got != 0 {
			t.Errorf("%d sessions of the waiter are in a transaction", got)
		}
	}
	// So this does not wait for it.
	d.Exec(t, `CREATE INDEX CONCURRENTLY gate_index ON runs (version)`)
	gate.release()
	must(t, "Up of the runner", happens(t, "the runner ends", runner))
	must(t, "Up of the waiter", happens(t, "the waiter ends", done))
}

func TestWhereNothingIsPendingNoLockIsTaken(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	d.Exec(t, `CREATE TABLE schema_migrations (version bigint not null primary key, dirty boolean not null); INSERT INTO schema_migrations VALUES (3, false)`)
	role := d.Role(t)
	d.Exec(t, `GRANT SELECT ON schema_migrations TO `+role)
	g := open(t, d.URLAs(role), three(t), migrateguard.Config{}) // a role that may neither create nor lock
	must(t, "Up", g.Up(soon(t)))
	must(t, "Migrate", g.Migrate(soon(t), 3))
	if pgtest.Query[bool](t, d, `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'pglock')`) {
		t.Error("the lease's schema was installed for nothing")
	}
}

// One guard, from two goroutines: the second waits for the first, and then finds nothing to do.
func TestOneGuardMayBeUsedByMany(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, runs)
	told := make(chan migrateguard.Event, 100)
	ctx := soon(t)
	var g *migrateguard.Guard
	g = open(t, d.URL, three(t), migrateguard.Config{Wait: 2 * time.Second, Notify: func(e migrateguard.Event) {
		if told <- e; len(told) == 1 { // Up is in the middle of its work
			wantErr(t, "Steps meanwhile", g.Steps(ctx, 1), migrateguard.ErrBusy, "another call of this Guard")
		}
	}})
	must(t, "Up", g.Up(ctx))
	g = open(t, d.URL, three(t), migrateguard.Config{Notify: func(e migrateguard.Event) { told <- e }})
	must(t, "Down", errors.Join(together(2, func(int) error { return g.Down(ctx) })...))
	if n := len(told); n != 12 {
		t.Errorf("%d events, want two for each of three migrations, up and down", n)
	}
}

// All calls, one after the other, on one guard.
func TestCallsInSequence(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, `CREATE SCHEMA app; CREATE TABLE app.other (); CREATE TABLE public.runs (version int)`)
	pool := poolAs(t, d.URL, func(c *pgxpool.Config) {
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "SET search_path = app")
			return err
		}
	})
	g, err := migrateguard.New(pool, three(t), migrateguard.Config{})
	must(t, "New", err)
	ctx := soon(t)
	for _, step := range []struct {
		what string
		call func() error
		want string
	}{
		{"Up", func() error { return g.Up(ctx) }, "3"},
		{"Down", func() error { return g.Down(ctx) }, "nothing"},
		{"Down again", func() error { return g.Down(ctx) }, "nothing"},
		{"Steps(2)", func() error { return g.Steps(ctx, 2) }, "2"},
		{"Steps(-1)", func() error { return g.Steps(ctx, -1) }, "1"},
		{"Migrate(3)", func() error { return g.Migrate(ctx, 3) }, "3"},
		{"Migrate(1)", func() error { return g.Migrate(ctx, 1) }, "1"},
		{"Force(2)", func() error { return g.Force(ctx, 2) }, "2"},
		{"Force(-1)", func() error { return g.Force(ctx, -1) }, "nothing"},
	} {
		must(t, step.what, step.call())
		if got := version(t, d, "app.schema_migrations"); got != step.want {
			t.Errorf("after %s the version is %s, want %s", step.what, got, step.want)
		}
	}
	must(t, "Drop", g.Drop(ctx))
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pg_class WHERE relnamespace = 'app'::regnamespace`); n != 0 {
		t.Errorf("%d tables are left after Drop", n)
	}
	if !pgtest.Query[bool](t, d, `SELECT to_regclass('public.runs') IS NOT NULL`) {
		t.Error("Drop took away what is in another schema")
	}
	must(t, "Up after Drop", g.Up(ctx))
	nothingLeft(t, d)
}

// Several databases have the same migrations. Golang-migrate's source is not made for that: the race detector shows it.
func TestGuardsMayShareASource(t *testing.T) {
	t.Parallel()
	src := files(t, "1_a.up.sql", "SELECT 1", "2_b.up.sql", "SELECT 2", "3_c.up.sql", "SELECT 3")
	guards := make([]*migrateguard.Guard, 3)
	for i := range guards {
		guards[i] = open(t, pgtest.DB(t).URL, src, migrateguard.Config{})
	}
	for _, err := range together(len(guards), func(i int) error { return guards[i].Up(soon(t)) }) {
		wantErr(t, "Up", err, nil)
	}
}
