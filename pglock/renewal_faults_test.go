package pglock_test

import (
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// renewedAgain waits until a renewal that began later than now has been committed.
func renewedAgain(t *testing.T, d *pgtest.Database, name string) {
	t.Helper()
	until := pgtest.Query[time.Time](t, d, `SELECT clock_timestamp() + ttl FROM pglock.leases WHERE name = $1`, name)
	d.WaitFor(t, `SELECT expires_at > $2 FROM pglock.leases WHERE name = $1`, name, until)
}

func stillHeld(t *testing.T, d *pgtest.Database, l *pglock.Lease) {
	t.Helper()
	if !l.Valid() {
		t.Errorf("lost: %v", l.Err())
	}
	if token := pgtest.Query[int64](t, d, `SELECT token FROM pglock.leases WHERE name = $1`, l.Name()); token != int64(l.Token()) {
		t.Errorf("the token is %d, was %d", token, l.Token())
	}
	wantErr(t, "Renew", l.Renew(soon(t)), nil)
}

// The server answers two renewals with an error, and grants the third.
func TestTwoFailedRenewalsAreNoLoss(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, `CREATE SEQUENCE tries; GRANT ALL ON SEQUENCE tries TO PUBLIC;
		CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF NEW.expires_at > OLD.expires_at AND NEW.token = OLD.token AND nextval('public.tries') <= 2 THEN
				RAISE EXCEPTION 'made up' USING ERRCODE = NEW.name;
			END IF;
			RETURN NEW;
		END $$;
		CREATE TRIGGER fail BEFORE UPDATE ON pglock.leases FOR EACH ROW EXECUTE FUNCTION fail()`)
	c := open(t, d.URL, pglock.Config{RenewEvery: 100 * time.Millisecond})
	for _, state := range []string{"40001", "40P01", "55P03", "57014", "53200", "53300", "57P03", "XX000", "P0001", "22003", "25006", "08006"} {
		t.Run(state, func(t *testing.T) {
			d.Exec(t, `SELECT setval('tries', 1, false)`)
			l := take(t, c, state)
			renewedAgain(t, d, state)
			if tries := pgtest.Query[int](t, d, `SELECT last_value FROM tries`); tries < 3 {
				t.Errorf("renewed at try %d", tries)
			}
			stillHeld(t, d, l)
			release(t, l)
		})
	}
}

// The connection fails under two renewals.
func TestABrokenRenewalConnectionIsNoLoss(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	for what, fault := range map[string]func(t *testing.T, d *pgtest.Database, p *pgtest.Proxy){
		"reset": func(_ *testing.T, _ *pgtest.Database, p *pgtest.Proxy) { p.Cut() },
		"reply lost": func(t *testing.T, _ *pgtest.Database, p *pgtest.Proxy) {
			happens(t, "a reply is lost", p.LoseNextReply("the lease"))
		},
		"request lost": func(t *testing.T, _ *pgtest.Database, p *pgtest.Proxy) {
			happens(t, "a request is lost", p.LoseNextRequest("the lease"))
		},
		"backend ended": func(t *testing.T, d *pgtest.Database, _ *pgtest.Proxy) {
			d.WaitFor(t, `SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) > 0 FROM pg_stat_activity
				WHERE datname = current_database() AND query LIKE '%renew(%' AND pid <> pg_backend_pid()`)
		},
		"every backend ended": func(t *testing.T, d *pgtest.Database, _ *pgtest.Proxy) { d.KillBackends(t, "true") },
		"refused for a while": func(t *testing.T, d *pgtest.Database, p *pgtest.Proxy) {
			p.Refuse(true)
			p.Cut()
			was := pgtest.Query[time.Time](t, d, `SELECT clock_timestamp()`)
			d.WaitFor(t, `SELECT clock_timestamp() > $1::timestamptz + interval '1 s'`, was)
			p.Refuse(false)
		},
		"silent for a while": func(t *testing.T, d *pgtest.Database, p *pgtest.Proxy) {
			p.Stall(pgtest.Both)
			was := pgtest.Query[time.Time](t, d, `SELECT clock_timestamp()`)
			d.WaitFor(t, `SELECT clock_timestamp() > $1::timestamptz + interval '1 s'`, was)
			p.Resume()
		},
	} {
		t.Run(what, func(t *testing.T) {
			p := pgtest.NewProxy(t, d)
			l := take(t, open(t, p.URL(), pglock.Config{RenewEvery: 200 * time.Millisecond}), "the lease")
			for range 2 {
				renewedAgain(t, d, "the lease")
				fault(t, d, p)
			}
			renewedAgain(t, d, "the lease")
			stillHeld(t, d, l)
		})
	}
}

// A renewal is stuck on the server, which works on: a table lock that somebody took by hand.
func TestARenewalThatHangsIsTriedAgainAndIsNoLoss(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	l := take(t, open(t, d.URL, pglock.Config{RenewEvery: 200 * time.Millisecond}), "a")
	conn := d.Conn(t)
	if _, err := conn.Exec(t.Context(), `BEGIN; LOCK TABLE pglock.leases IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d.WaitFor(t, pgtest.Waiting)
		d.KillBackends(t, `wait_event_type = 'Lock'`) // in the middle of a renewal
	}
	d.WaitFor(t, pgtest.Waiting)
	if _, err := conn.Exec(t.Context(), `ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	renewedAgain(t, d, "a")
	stillHeld(t, d, l)
}

func TestALeaseWhoseRowIsLockedByHandIsNoLoss(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	l := take(t, open(t, d.URL, pglock.Config{RenewEvery: 200 * time.Millisecond}), "a")
	conn := d.Conn(t)
	if _, err := conn.Exec(t.Context(), `BEGIN; SELECT FROM pglock.leases FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	renewing := async(func() error { return l.Renew(soon(t)) }) // waits
	was := pgtest.Query[time.Time](t, d, `SELECT clock_timestamp()`)
	d.WaitFor(t, `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%renew(%'
		AND query_start > $1::timestamptz + interval '500 ms'`, was)
	select {
	case err := <-renewing:
		t.Errorf("Renew = %v while the row was locked", err)
	default:
	}
	if _, err := conn.Exec(t.Context(), `ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "Renew", happens(t, "Renew comes back", renewing), nil)
	stillHeld(t, d, l)
}
