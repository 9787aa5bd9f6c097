package migrateguard_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/fencedlock/fencedlock/pglock/migrateguard"
)

// take gives the lease to somebody else, as if it had run out.
const take = `UPDATE pglock.leases SET expires_at = 'epoch', not_before = 'epoch' WHERE name LIKE 'migrate %';
	SELECT * FROM pglock.acquire(ARRAY['migrate "public"."schema_migrations"'], ARRAY[gen_random_uuid()], 'the thief', ARRAY[5000000::bigint])`

// The lease is lost while a migration runs. That one is finished, but it is not recorded, and no other begins: whoever else has the
// lease now may be at it.
func TestARunnerThatLostItsLeaseStops(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]func(*testing.T, *pgtest.Database) string{
		"direct": func(_ *testing.T, d *pgtest.Database) string { return d.URL },
		"pooler": func(t *testing.T, d *pgtest.Database) string { return pgtest.PgBouncer(t, d) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			url := path(t, d)
			gate := newGate(t, d)
			told, notify := events()
			g := open(t, url, files(t, "1_a.up.sql", gated, "2_b.up.sql", "INSERT INTO public.runs VALUES (2)"), migrateguard.Config{Notify: notify})
			runner := async(func() error { return g.Up(soon(t)) })
			atWork(t, d)
			d.Exec(t, take)
			gate.release()
			err := happens(t, "Up ends", runner)
			wantErr(t, "Up", err, migrateguard.ErrLost, "version 1", "record version 1", `that of version table "public"."schema_migrations"`)
			wantErr(t, "Up", err, migrateguard.ErrDirty)
			if errors.Is(err, migrateguard.ErrMigrated) {
				t.Errorf("Up says that all was migrated: %v", err)
			}
			wantVersion(t, d, "1 dirty")
			if n := pgtest.Query[int](t, d, `SELECT count(*) FROM runs`); n != 0 {
				t.Error("the second migration ran")
			}
			if got := pgtest.Query[string](t, d, `SELECT owner FROM pglock.leases WHERE expires_at > clock_timestamp()`); got != "the thief" {
				t.Errorf("the lease is %q's, want it left alone", got)
			}
			next(t, told, migrateguard.Started)
			if e := next(t, told, migrateguard.Finished); e.Err == nil {
				t.Error("the migration is told to have been recorded")
			}
		})
	}
}

// The answer to the mark of a migration arrives when the lease has run out. The file is not sent any more: somebody else may be at it.
func TestAFileIsNotSentOnceTheLeaseHasRunOut(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, runs)
	p := pgtest.NewProxy(t, d)
	pool := poolAs(t, p.URL(), func(c *pgxpool.Config) {
		c.ConnConfig.Tracer = &before{text: "commit", after: "INSERT INTO \"public\"", call: func() { p.Stall(pgtest.ToClient) }}
	})
	cfg := migrateguard.Config{Lease: pglock.Config{TTL: time.Second}}
	g, err := migrateguard.New(pool, files(t, "1_a.up.sql", "INSERT INTO public.runs VALUES (1)"), cfg)
	must(t, "New", err)
	runner := async(func() error { return g.Up(soon(t)) })
	d.WaitFor(t, `SELECT EXISTS (SELECT FROM pglock.leases WHERE name LIKE 'migrate %' AND expires_at < clock_timestamp())`)
	p.Resume()
	err = happens(t, "Up ends", runner)
	wantErr(t, "Up", err, migrateguard.ErrLost)
	wantErr(t, "Up", err, migrateguard.ErrDirty, "Force(-1)")
	if got := ran(t, d); got != "" {
		t.Errorf("the migrations that ran are %s", got)
	}
	wantVersion(t, d, "1 dirty")
	nothingLeft(t, d)
}

// Between two migrations it is clean: the next one is not begun, not even marked.
func TestARunnerThatLostItsLeaseBeginsNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, runs)
	notify := func(e migrateguard.Event) {
		if e.Kind == migrateguard.Finished && e.K == 1 {
			d.Exec(t, take)
		}
	}
	err := open(t, d.URL, three(t), migrateguard.Config{Notify: notify}).Up(soon(t))
	wantErr(t, "Up", err, migrateguard.ErrLost)
	if errors.Is(err, migrateguard.ErrDirty) || errors.Is(err, migrateguard.ErrMigrated) {
		t.Errorf("Up = %v, which is neither dirty nor all", err)
	}
	wantVersion(t, d, "1")
}

// All SQL has worked and is recorded, and then the lease is gone, or its release is not confirmed. That is told apart from a
// migration that was not done.
func TestTheEndIsToldApartFromTheWork(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		cfg  migrateguard.Config
		fail func(*testing.T, *pgtest.Database, *pgtest.Proxy)
		want error
	}{
		"the lease is lost": {migrateguard.Config{}, func(t *testing.T, d *pgtest.Database, _ *pgtest.Proxy) { d.Exec(t, take) }, migrateguard.ErrLost},
		"the release is lost": {migrateguard.Config{}, func(_ *testing.T, _ *pgtest.Database, p *pgtest.Proxy) {
			p.Refuse(true)
			p.Cut()
		}, pglock.ErrNotReleased},
		"the session is lost": {migrateguard.Config{Session: true}, func(t *testing.T, d *pgtest.Database, _ *pgtest.Proxy) {
			d.KillBackends(t, "application_name = 'pglock/migrateguard'")
		}, migrateguard.ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			d.Exec(t, runs)
			p := pgtest.NewProxy(t, d)
			test.cfg.Notify = func(e migrateguard.Event) {
				if e.Kind == migrateguard.Finished && e.K == e.N {
					test.fail(t, d, p)
				}
			}
			err := open(t, p.URL(), three(t), test.cfg).Up(soon(t))
			wantErr(t, "Up", err, migrateguard.ErrMigrated)
			wantErr(t, "Up", err, test.want)
			wantVersion(t, d, "3")
		})
	}
}

// The answer to the commit of a version is lost, or the commit is. Whether a version is dirty is read from the table, and whoever is told
// that it is not can call again.
func TestALostCommitOfAVersionIsLookedUp(t *testing.T) {
	t.Parallel()
	const began, ran = "the mark", "the record" // what is lost of the second migration
	lostReply := func(p *pgtest.Proxy) { p.LoseNextReply("commit") }
	lostCommit := func(p *pgtest.Proxy) { p.LoseNextRequest("commit") }
	lostDatabase := func(p *pgtest.Proxy) { lostReply(p); p.Refuse(true) }
	for name, test := range map[string]struct {
		session      bool
		last         int // of the migrations
		of           string
		lose         func(*pgtest.Proxy)
		want         []error
		says, leaves string
	}{
		"the last one is recorded":                    {last: 2, of: ran, lose: lostReply, leaves: "2"},
		"the last one is recorded, and the lock gone": {session: true, last: 2, of: ran, lose: lostReply, want: []error{migrateguard.ErrMigrated, migrateguard.ErrLost}, leaves: "2"},
		"one is recorded, and another was to follow":  {last: 3, of: ran, lose: lostReply, says: "stopped after migration 2 of 3", leaves: "2"},
		"nobody can look":                             {session: true, last: 2, of: ran, lose: lostDatabase, says: "call again", leaves: "2"},
		"it is not recorded":                          {last: 2, of: ran, lose: lostCommit, want: []error{migrateguard.ErrDirty}, leaves: "2 dirty"},
		"it is marked":                                {last: 2, of: began, lose: lostReply, want: []error{migrateguard.ErrDirty}, leaves: "2 dirty"},
		"it is not marked":                            {last: 2, of: began, lose: lostCommit, says: "migration 2_b: record version 2", leaves: "1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			d.Exec(t, runs)
			p := pgtest.NewProxy(t, d)
			pool := poolAs(t, p.URL(), func(c *pgxpool.Config) {
				c.ConnConfig.Tracer = &canceller{"INSERT INTO public.runs VALUES (2)", func() {
					if test.of == ran {
						test.lose(p)
					}
				}}
			})
			told, notify := events()
			cfg := migrateguard.Config{Session: test.session, Notify: func(e migrateguard.Event) {
				if e.Kind == migrateguard.Started && e.K == 2 && test.of == began {
					test.lose(p)
				}
				notify(e)
			}}
			all := []string{"1_a.up.sql", "SELECT 1", "2_b.up.sql", "INSERT INTO public.runs VALUES (2)", "3_c.up.sql", "SELECT 3"}
			g, err := migrateguard.New(pool, files(t, all[:2*test.last]...), cfg)
			must(t, "New", err)

			err = g.Up(soon(t))

			if (err == nil) != (len(test.want) == 0 && test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("Up = %v, want %v, and it to say %q", err, test.want, test.says)
			}
			for _, target := range test.want {
				wantErr(t, "Up", err, target)
			}
			wantVersion(t, d, test.leaves)
			dirty := strings.HasSuffix(test.leaves, "dirty")
			if errors.Is(err, migrateguard.ErrDirty) != dirty {
				t.Errorf("Up = %v, want it dirty: %v", err, dirty)
			}
			next(t, told, migrateguard.Finished)
			if e := next(t, told, migrateguard.Finished); (e.Err == nil) != (test.leaves == "2" && name != "nobody can look") {
				t.Errorf("told of the second migration: %v", e.Err)
			}
			p.Refuse(false)
			if !dirty {
				wantErr(t, "Up, again", g.Up(soon(t)), nil)
			}
			nothingLeft(t, d)
		})
	}
}

// The connection breaks while the server is still at the commit: what it will come to is waited for.
func TestACommitThatIsStillUnderWayIsWaitedFor(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	gate := newGate(t, d)
	d.Exec(t, `CREATE TABLE public.schema_migrations (version bigint not null primary key, dirty boolean not null);
		CREATE FUNCTION public.wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			PERFORM set_config('client_connection_check_interval', '0', false);
			LOOP
				BEGIN
					LOOP EXIT WHEN EXISTS (SELECT FROM public.gate); PERFORM pg_sleep(0.02); END LOOP;
					RETURN NULL;
				EXCEPTION WHEN query_canceled THEN -- the driver asks for that when the connection breaks, and it may come too late
				END;
			END LOOP; END $$;
		CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON public.schema_migrations DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW WHEN (NOT new.dirty) EXECUTE FUNCTION public.wait()`)
	p := pgtest.NewProxy(t, d)
	runner := async(func() error {
		return open(t, p.URL(), files(t, "1_a.up.sql", "SELECT 1"), migrateguard.Config{}).Up(soon(t))
	})
	d.WaitFor(t, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND query = 'commit' AND wait_event = 'PgSleep')`)
	p.Cut()
	d.WaitFor(t, `SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'public.schema_migrations'::regclass AND NOT granted)`)
	gate.release()
	wantErr(t, "Up", happens(t, "the runner ends", runner), nil)
	wantVersion(t, d, "1")
	nothingLeft(t, d)
}

// The network of the runner goes silent in the middle of a migration. The server cannot know: its backend works on. Whoever
// is granted the lease meanwhile waits for that backend, says so, and begins nothing beside it.
func TestABackendThatWorksOnIsWaitedFor(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	gate := newGate(t, d)
	p := pgtest.NewProxy(t, d)
	src := []string{"1_a.up.sql", gated, "2_b.up.sql", "INSERT INTO public.runs VALUES (2)"}
	cfg := migrateguard.Config{Lease: pglock.Config{TTL: 2e9}}
	runner := async(func() error { return open(t, p.URL(), files(t, src...), cfg).Up(soon(t)) })
	atWork(t, d)
	pid := pgtest.Query[int](t, d, `SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'DO $$ BEGIN LOOP EXIT%'`)
	p.Stall(pgtest.Both)

	told, notify := events()
	cfg.Notify, cfg.Lease.TTL = notify, 0
	waiter := async(func() error { return open(t, d.URL, files(t, src...), cfg).Up(soon(t)) })
	e := next(t, told, migrateguard.Waiting)
	if errors.Is(e.Err, pglock.ErrHeld) { // until the lease has run out
		e = next(t, told, migrateguard.Waiting)
	}
	wantErr(t, "the reason for waiting", e.Err, advisoryHeld, "the runner is gone, or has lost its lease, and its backend", "still works")
	if got := pgtest.Query[int](t, d, `SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`); got != pid {
		t.Errorf("backend %d holds the session lock, want %d, which runs the SQL", got, pid)
	}
	select {
	case err := <-waiter:
		t.Fatalf("the waiter did not wait for the backend: %v", err)
	default:
	}

	gate.release() // the SQL ends, and works; the network comes back
	p.Resume()
	wantErr(t, "Up of the runner", happens(t, "the runner ends", runner), migrateguard.ErrLost)
	wantErr(t, "Up of the waiter", happens(t, "the waiter ends", waiter), migrateguard.ErrDirty, "version 1")
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM runs`); n != 0 {
		t.Errorf("the second migration ran %d times", n)
	}
	nothingLeft(t, d)
}
