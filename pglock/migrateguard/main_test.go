package migrateguard_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/golang-migrate/migrate/v4/source"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock/migrateguard"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// patience bounds what must happen soon. It is long because it ends only tests that fail anyway.
const patience = 30 * time.Second

// files makes a source of names and texts: "1_a.up.sql", "SELECT 1", …
func files(t testing.TB, pairs ...string) source.Driver {
	t.Helper()
	fsys := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		fsys[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	src, err := iofs.New(fsys, ".")
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// runs is a table that counts how often each migration has run.
const runs = `CREATE TABLE public.runs (version int)`

// three are three migrations, each of which says that it ran. They need the table runs. The second must not be in a transaction.
func three(t testing.TB) source.Driver {
	t.Helper()
	return files(t,
		"1_books.up.sql", "CREATE TABLE books (title text); INSERT INTO books SELECT i::text FROM generate_series(1, 1000) i; INSERT INTO public.runs VALUES (1)",
		"1_books.down.sql", "DROP TABLE books",
		"2_index.up.sql", "CREATE INDEX CONCURRENTLY books_title ON books (title)",
		"2_index.down.sql", "DROP INDEX books_title",
		"3_last.up.sql", "INSERT INTO public.runs VALUES (3)",
		"3_last.down.sql", "INSERT INTO public.runs VALUES (-3)",
	)
}

// open is a guard with its own connections.
func open(t testing.TB, url string, src source.Driver, cfg migrateguard.Config) *migrateguard.Guard {
	t.Helper()
	g, err := migrateguard.Open(url, src, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// soon is a context for what must happen soon.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// wantErr checks what an error is and what it says.
func wantErr(t testing.TB, what string, err, target error, says ...string) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("%s = %v, want %v", what, err, target)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%s does not say %q: %v", what, s, err)
		}
	}
}

func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// version is what the version table says, in golang-migrate's format.
func version(t testing.TB, d *pgtest.Database, table string) string {
	t.Helper()
	return pgtest.Query[string](t, d, `SELECT coalesce((SELECT version || CASE WHEN dirty THEN ' dirty' ELSE '' END FROM `+table+`), 'nothing')`)
}

func wantVersion(t testing.TB, d *pgtest.Database, want string) {
	t.Helper()
	if got := version(t, d, "public.schema_migrations"); got != want {
		t.Errorf("the database is at version %s, want %s", got, want)
	}
}

// nothingLeft checks that no connection of a guard is left, and no lock. Backends need a moment to end.
func nothingLeft(t testing.TB, d *pgtest.Database) {
	t.Helper()
	d.WaitFor(t, `SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'pglock%')`)
	noLocks(t, d)
}

// noLocks checks that nobody holds an advisory lock in the database, or the lease. A pooler keeps its connections.
func noLocks(t testing.TB, d *pgtest.Database) {
	t.Helper()
	d.WaitFor(t, `SELECT NOT EXISTS (SELECT FROM pg_locks l JOIN pg_database b ON b.oid = l.database WHERE locktype = 'advisory' AND b.datname = current_database())`)
	if pgtest.Query[bool](t, d, `SELECT to_regclass('pglock.leases') IS NOT NULL`) {
		if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pglock.leases WHERE expires_at > clock_timestamp()`); n != 0 {
			t.Errorf("%d leases are held", n)
		}
	}
}

// async runs a call in a goroutine, and hands over what it answers.
func async[T any](f func() T) <-chan T {
	answer := make(chan T, 1)
	go func() { answer <- f() }()
	return answer
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

// together runs a call on n guards at once, and returns their errors.
func together(n int, call func(i int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() { <-start; errs[i] = call(i) })
	}
	close(start)
	wg.Wait()
	return errs
}

// events is a Notify that hands over what it is told.
func events() (chan migrateguard.Event, func(migrateguard.Event)) {
	c := make(chan migrateguard.Event, 100)
	return c, func(e migrateguard.Event) { c <- e }
}

// next waits for an event of a kind.
func next(t testing.TB, c <-chan migrateguard.Event, kind migrateguard.Kind) migrateguard.Event {
	t.Helper()
	for {
		if e := happens(t, "an event: "+string(kind), c); e.Kind == kind {
			return e
		}
	}
}

// poolAs is a pool with other settings, closed when the test ends.
func poolAs(t testing.TB, url string, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	change(cfg)
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// A gate is a lock that a migration waits for: it is at work for as long as the test wants. It is waited for as pg_sleep would be, with
// no lock queue.
type gate struct{ release func() }

// gated is the SQL of a migration that runs until the gate opens. It needs the table gate.
const gated = `DO $$ BEGIN LOOP EXIT WHEN EXISTS (SELECT FROM public.gate); PERFORM pg_sleep(0.02); COMMIT; END LOOP; END $$`

// newGate makes the table.
func newGate(t testing.TB, d *pgtest.Database) gate {
	t.Helper()
	d.Exec(t, `CREATE TABLE public.gate (); CREATE TABLE public.runs (version int)`)
	return gate{func() { d.Exec(t, `INSERT INTO public.gate DEFAULT VALUES`) }}
}

// atWork waits until a migration runs that waits for the gate.
func atWork(t testing.TB, d *pgtest.Database) {
	t.Helper()
	d.WaitFor(t, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'DO $$ BEGIN LOOP EXIT%')`)
}
