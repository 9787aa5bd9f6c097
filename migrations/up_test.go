package migrations_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/migrations"
)

// together calls Up n times at once and checks that all of them return nil.
func together(t *testing.T, pool *pgxpool.Pool, n int, opts ...migrations.Option) {
	t.Helper()
	ctx := bounded(t)
	start := make(chan struct{})
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = migrations.Up(ctx, pool, opts...)
		})
	}
	close(start)
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestSixteenReplicasInstallAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	rounds(t, db, db.URL)
}

// rounds lets 16 replicas install an empty database, 25 times in the long mode.
func rounds(t *testing.T, db *pgtest.Database, url string) {
	t.Helper()
	pool := poolAs(t, url)
	for range pgtest.Rounds(2, 25) {
		if n := objects(t, db); n != 0 {
			t.Fatalf("the database has %d objects", n)
		}
		together(t, pool, 16)
		if got, want := pgtest.Query[int](t, db, "SELECT count(*) FROM pglock.migrations"), 3; got < want {
			t.Fatalf("%d files are recorded, want %d", got, want)
		}
		if err := migrations.Down(bounded(t), pool); err != nil {
			t.Fatal(err)
		}
	}
	pool.Close()
	if url == db.URL { // a pooler keeps its connections
		nothingLeft(t, db)
	}
	noLocksLeft(t, db)
}

func TestSchemasOfOneDatabaseAreApart(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	pool := db.Pool(t)
	ctx := bounded(t)
	var wg sync.WaitGroup
	for _, schema := range []string{"a", "b", "c", "d"} {
		wg.Go(func() {
			if err := migrations.Up(ctx, pool, migrations.Schema(schema)); err != nil {
				t.Errorf("schema %s: %v", schema, err)
			}
		})
	}
	wg.Wait()
	for _, schema := range []string{"a", "b", "c", "d"} {
		if _, err := acquire(ctx, pool, schema, "the same"); err != nil {
			t.Errorf("schema %s: %v", schema, err)
		}
	}
	if migrations.LockKey("a") == migrations.LockKey("b") {
		t.Error("two schemas have one lock")
	}
}

// A pool whose only connection is busy, hooks that must run, and everything that a role may have set against us.
func TestUpUsesAConnectionOfItsOwn(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	var before, after int
	pool := poolAs(t, db.URL, func(c *pgxpool.Config) {
		c.MaxConns = 1
		c.ConnConfig.User = "nobody-by-this-name"
		c.BeforeConnect = func(_ context.Context, cc *pgx.ConnConfig) error {
			before++
			parsed, err := pgx.ParseConfig(db.URL)
			if err == nil {
				cc.User = parsed.User // as those do who fetch a password for each connection
			}
			return err
		}
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			after++
			_, err := conn.Exec(ctx, "SET application_name = 'hooked'")
			return err
		}
	})
	busy, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Release()
	mustUp(t, pool)
	if before != 2 || after != 2 {
		t.Errorf("BeforeConnect ran %d times and AfterConnect %d times, want 2 and 2", before, after)
	}
	db.WaitFor(t, `SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'hooked'`)
}

func TestUpClosesAConnectionThatItsHookRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	no := errors.New("no")
	pool := poolAs(t, db.URL, func(c *pgxpool.Config) {
		c.AfterConnect = func(context.Context, *pgx.Conn) error { return no }
	})
	wantErr(t, migrations.Up(t.Context(), pool), no)
	nothingLeft(t, db)
}

func TestUpWorksWhateverTheRoleHasSet(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	role := db.Role(t)
	db.Exec(t, `DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO `+role+`', current_database()); END $$`)
	for _, set := range []string{
		"statement_timeout = '300ms'", "lock_timeout = '1ms'", "idle_in_transaction_session_timeout = '1ms'",
		"default_transaction_isolation = 'serializable'", "default_transaction_read_only = on", "synchronous_commit = off",
		"standard_conforming_strings = off", "client_encoding = 'LATIN1'", "search_path = hijack, pg_catalog", "check_function_bodies = off",
		"escape_string_warning = on", "quote_all_identifiers = on", "DateStyle = 'German'", "IntervalStyle = 'sql_standard'",
	} {
		db.Exec(t, "ALTER ROLE "+role+" SET "+set)
	}
	db.Exec(t, `DO $$ BEGIN
		IF current_setting('transaction_timeout', true) IS NOT NULL THEN ALTER ROLE `+role+` SET transaction_timeout = '600ms'; END IF; -- 17 and later
	END $$`)
	// Whoever may create in a schema of the search_path offers functions that fit better than PostgreSQL's own.
	db.Exec(t, `CREATE SCHEMA hijack; GRANT USAGE ON SCHEMA hijack TO PUBLIC;
		CREATE FUNCTION hijack.floor(double precision) RETURNS float LANGUAGE plpgsql AS $$ BEGIN RAISE 'hijacked'; END $$;
		CREATE FUNCTION hijack.hashtextextended(text, bigint) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RAISE 'hijacked'; END $$;
		CREATE FUNCTION hijack.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN RAISE 'hijacked'; END $$`)
	// At serializable, who waited for the lock could miss what it waited for. It takes longer than the timeouts.
	db.Exec(t, `CREATE FUNCTION hijack.isolation() RETURNS event_trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF current_setting('transaction_isolation') <> 'read committed' THEN RAISE 'wrong isolation'; END IF;
			IF current_setting('hijack.slept', true) IS DISTINCT FROM 'yes' THEN PERFORM pg_sleep(0.7), set_config('hijack.slept', 'yes', true); END IF;
		END $$;
		CREATE EVENT TRIGGER isolation ON ddl_command_end EXECUTE FUNCTION hijack.isolation()`)
	const odd = `é \ 'n "n`
	pool := poolAs(t, db.URLAs(role))
	for range 2 {
		together(t, pool, 4, migrations.Schema(odd), migrations.Cap(time.Second), migrations.SingleNode())
	}
	if err := migrations.Down(bounded(t), pool, migrations.Schema(odd)); err != nil {
		t.Fatal(err)
	}
}

func TestUpIsANoOpForARoleWithoutCreate(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	mustUp(t, db.Pool(t), migrations.Cap(time.Second))
	role := db.Role(t)
	locker := poolAs(t, db.URLAs(role))

	wantErr(t, migrations.Up(t.Context(), locker), migrations.ErrPrivilege, role, `SELECT "pglock".grant_locker('`+role+`')`)
	_, err := migrations.Version(t.Context(), locker)
	wantErr(t, err, migrations.ErrPrivilege)

	db.Exec(t, `SELECT "pglock".grant_locker('`+role+`')`) // as the message says
	mustUp(t, locker)
	mustUp(t, locker, migrations.Cap(time.Second))
	wantErr(t, migrations.Up(t.Context(), locker, migrations.Cap(2*time.Second)), migrations.ErrSettings)
	st, err := migrations.Version(t.Context(), locker)
	if err != nil || st.Version != st.Latest || st.Version == 0 {
		t.Errorf("Version = %+v, %v", st, err)
	}
	wantErr(t, migrations.Down(t.Context(), locker), migrations.ErrPrivilege, role, "owner")
}

func TestVersionOfNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	_, err := migrations.Version(t.Context(), db.Pool(t))
	wantErr(t, err, migrations.ErrNotInstalled, "pglock", db.Name, "migrations.Up")
}

func TestBadCallsAreRefusedBeforeAnySQL(t *testing.T) {
	t.Parallel()
	version := func(ctx context.Context, pool *pgxpool.Pool, opts ...migrations.Option) error {
		_, err := migrations.Version(ctx, pool, opts...)
		return err
	}
	calls := map[string]func(context.Context, *pgxpool.Pool, ...migrations.Option) error{"Up": migrations.Up, "Down": migrations.Down, "Version": version}
	for what, call := range calls {
		if err := call(t.Context(), nil); !errors.Is(err, migrations.ErrInvalid) {
			t.Errorf("%s without a pool = %v, want ErrInvalid", what, err)
		}
	}
	pool := poolAs(t, "postgres://nobody@192.0.2.1:1/none?connect_timeout=60") // nothing answers there
	long := "0123456789012345678901234567890123456789012345678901234567890123"
	for _, o := range []migrations.Option{
		migrations.Schema(""), migrations.Schema("a\x00b"), migrations.Schema("a\xffb"), migrations.Schema(long),
		migrations.Schema("pg_temp"), migrations.Schema("a$$b"),
		migrations.Cap(-1), migrations.Cap(0), migrations.Cap(99 * time.Millisecond), migrations.Cap(24*time.Hour + 1),
		migrations.Cap(time.Second + time.Nanosecond),
	} {
		for what, call := range calls {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			err := call(ctx, pool, o)
			if !errors.Is(err, migrations.ErrInvalid) || ctx.Err() != nil {
				t.Errorf("%s = %v, want ErrInvalid at once", what, err)
			}
			cancel()
		}
	}
	if _, err := migrations.FS(""); !errors.Is(err, migrations.ErrInvalid) {
		t.Errorf("FS without a name = %v, want ErrInvalid", err)
	}
}

// whileLocked runs f while another transaction has the lock of a schema.
func whileLocked(t *testing.T, db *pgtest.Database, f func()) {
	t.Helper()
	tx, err := db.Conn(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock($1)", migrations.LockKey("pglock")); err != nil {
		t.Fatal(err)
	}
	f()
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestUpWaitsUntilItsContextEnds(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	pool := db.Pool(t)
	why := errors.New("shutting down")
	for range pgtest.Rounds(4, 10) { // it ends between two tries, or in one
		upUntil(t, db, pool, why)
	}
	mustUp(t, pool)
}

func upUntil(t *testing.T, db *pgtest.Database, pool *pgxpool.Pool, why error) {
	t.Helper()
	whileLocked(t, db, func() {
		ctx, cancel := context.WithCancelCause(bounded(t))
		up := make(chan error)
		began := pgtest.Query[time.Time](t, db, `SELECT clock_timestamp()`)
		go func() { up <- migrations.Up(ctx, pool) }()
		// It has tried, and now it waits without a transaction, so without a snapshot.
		db.WaitFor(t, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle'
			AND query = 'rollback' AND query_start > $1)`, began)
		select {
		case err := <-up:
			t.Errorf("Up did not wait: %v", err)
		default:
		}
		cancel(why)
		wantErr(t, <-up, why, "up: ", `"pglock"`)
	})
}

func TestUpDoesNotWaitWhereThereIsNothingToDo(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	mustUp(t, db.Pool(t))
	whileLocked(t, db, func() { mustUp(t, db.Pool(t)) })
}
