package pglock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

func TestInspectTellsWhoHoldsOrHeldLast(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := open(t, d.URL, pglock.Config{Owner: "me"})
	inspect := func(name string) pglock.Status {
		t.Helper()
		s, err := c.Inspect(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := inspect("a"); s.Name != "a" || s.Held || s.Owner != "" || s.Token != 0 || s.FreeIn != 0 {
		t.Errorf("never used: %+v", s)
	}
	l := take(t, c, "a", pglock.NoRenewal(), pglock.TTL(20*time.Second))
	s := inspect("a")
	if !s.Held || s.Owner != "me" || s.Token != l.Token() || s.TTL != 20*time.Second || s.Remaining <= 0 || s.Remaining > s.TTL ||
		s.FreeIn != s.Remaining || time.Since(s.Since) > time.Minute {
		t.Errorf("held: %+v", s)
	}
	d.Age(t, "a", 20*time.Second)
	if s := inspect("a"); s.Held || s.Owner != "me" || s.Token != l.Token() || s.Remaining != 0 || s.FreeIn != 0 {
		t.Errorf("expired: %+v", s)
	}
	release(t, take(t, client(t, d), "a"))
	if s := inspect("a"); s.Held || s.Owner == "me" || s.Token <= l.Token() || s.Remaining != 0 || s.FreeIn != 0 {
		t.Errorf("released: %+v", s)
	}
}

func TestListHasEveryLockByName(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := client(t, d)
	if all, err := c.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("List = %v, %v", all, err)
	}
	names := []string{"B", "a", "b", "é", "用"} // in the order of their bytes
	for i := range names {
		l := take(t, c, names[len(names)-1-i])
		if l.Name() == "a" {
			release(t, l)
		}
	}
	all, err := c.List(t.Context())
	if err != nil || len(all) != len(names) {
		t.Fatalf("List = %v, %v", all, err)
	}
	for i, s := range all {
		if s.Name != names[i] || s.Held != (s.Name != "a") {
			t.Errorf("List[%d] = %+v", i, s)
		}
	}
}

func TestPruneForgetsIdleLocksOnly(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := client(t, d)
	held, idle := take(t, c, "held"), take(t, c, "idle")
	release(t, idle)
	release(t, take(t, c, "recent"))
	release(t, take(t, c, "not before", pglock.HoldAtLeast(24*time.Hour)))
	d.Exec(t, `UPDATE pglock.leases SET granted_at = granted_at - interval '2 h' WHERE name <> 'recent'`)
	d.Exec(t, `INSERT INTO pglock.leases (name, token) SELECT 'old ' || n, 1 FROM generate_series(1, 2500) n`)

	n, err := c.Prune(soon(t), time.Hour)

	if err != nil || n != 2501 {
		t.Errorf("Prune = %d, %v, want 2501", n, err)
	}
	all, err := c.List(t.Context())
	if err != nil || len(all) != 3 {
		t.Errorf("left: %+v, %v", all, err)
	}
	stillHeld(t, d, held)
	if next := take(t, c, "idle"); next.Token() <= idle.Token() {
		t.Errorf("token %d after %d", next.Token(), idle.Token())
	}
	if n, err := c.Prune(soon(t), 0); n != 0 || err != nil { // 0 counts as the cap
		t.Errorf("Prune(0) = %d, %v", n, err)
	}
	_, err = c.Prune(t.Context(), -1)
	wantErr(t, "Prune(-1)", err, pglock.ErrInvalidOption)
}

func TestPruneFencesForgetsIdleFencesOnly(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := client(t, d)
	live := take(t, c, "live")
	d.Exec(t, `INSERT INTO pglock.fences SELECT 0::oid, 'old ' || n, 'gone', 0, $1::bigint - 1, now() - interval '2 h' FROM generate_series(1, 2500) n
		UNION ALL SELECT 0::oid, 'of the live grant', 'live', 0, $1, now() - interval '2 h'
		UNION ALL SELECT 0::oid, 'recent', 'gone', 0, $1 - 1, now() - interval '59 min'`, int64(live.Token()))

	n, err := c.PruneFences(soon(t), time.Hour)

	if err != nil || n != 2500 {
		t.Errorf("PruneFences = %d, %v, want 2500", n, err)
	}
	const left = `SELECT string_agg(resource, ', ' ORDER BY resource) FROM pglock.fences WHERE resource <> ''`
	if got := pgtest.Query[string](t, d, left); got != "of the live grant, recent" {
		t.Errorf("left: %s", got)
	}
	_, err = c.PruneFences(t.Context(), -1)
	wantErr(t, "PruneFences(-1)", err, pglock.ErrInvalidOption)
}

// Where fences, locks and records come as fast as they are forgotten there is always one more: that ends no call, and keeps none.
func TestAPruneEndsWhileMoreBecomesIdle(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := client(t, d)
	d.Exec(t, `SELECT nextval('pglock.fencing_token');
		CREATE FUNCTION another() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			EXECUTE format('INSERT INTO %s SELECT ($1).*', TG_RELID::regclass) USING OLD;
			RETURN NULL; END $$;
		CREATE TRIGGER another AFTER DELETE ON pglock.fences FOR EACH ROW EXECUTE FUNCTION another();
		CREATE TRIGGER another AFTER DELETE ON pglock.leases FOR EACH ROW EXECUTE FUNCTION another();
		INSERT INTO pglock.fences SELECT 0::oid, 'old', 'gone', 0, 1, now() - interval '2 h';
		INSERT INTO pglock.leases (name, token) VALUES ('gone', 1)`)
	for what, prune := range map[string]func(context.Context, time.Duration) (int, error){"PruneFences": c.PruneFences, "Prune": c.Prune} {
		if n, err := prune(soon(t), time.Hour); n != 1 || err != nil {
			t.Errorf("%s = %d, %v, want 1", what, n, err)
		}
	}
}

// What a role is set to for the queries of its service must not bound a look, nor a pruning.
func TestALookIsNotBoundBySettingsForTheService(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := open(t, with(t, d.URL, "statement_timeout", "50", "lock_timeout", "50",
		"default_transaction_isolation", "serializable", "default_transaction_read_only", "on"), pglock.Config{})
	release(t, take(t, client(t, d), "a"))
	_, err := c.Inspect(soon(t), "a") // connects
	wantErr(t, "Inspect", err, nil)
	conn := d.Conn(t)
	if _, err := conn.Exec(t.Context(), `BEGIN; LOCK pglock.leases`); err != nil {
		t.Fatal(err)
	}
	looking := async(func() error { _, err := c.Inspect(soon(t), "a"); return err })
	d.WaitFor(t, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
		AND wait_event_type = 'Lock' AND clock_timestamp() - query_start > interval '200 ms')`)
	if _, err := conn.Exec(t.Context(), `ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "Inspect", happens(t, "Inspect comes back", looking), nil)
	_, err = c.Prune(soon(t), 0)
	wantErr(t, "Prune", err, nil)
}

func TestALookThatIsGivenUpTellsTheCause(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	p := pgtest.NewProxy(t, d)
	c := open(t, p.URL(), pglock.Config{})
	_, err := c.Inspect(soon(t), "a")
	wantErr(t, "Inspect", err, nil)
	p.Stall(pgtest.Both)
	why := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(t.Context())
	looking := async(func() error { _, err := c.Inspect(ctx, "a"); return err })
	cancel(why)
	wantErr(t, "Inspect", happens(t, "Inspect comes back", looking), why)
	p.Resume()
}
