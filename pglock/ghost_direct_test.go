package pglock_test

import (
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/history"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// A backend whose client has gone does not notice while it waits, and would commit its grant much later. Without a pooler the
// client knows it, and ends it before it asks again, so that a call has one grant and no second one behind its back.
func TestABackendThatWasLeftInItsCommitIsEndedAndItsGrantNeverComes(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, history.InstallLog("pglock"))
	// A request to cancel, which pgx sends when a connection breaks, may get lost: here it does nothing.
	d.Exec(t, `
		CREATE FUNCTION wait_for_the_test() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS $$
		BEGIN
			WHILE new.name = 'a' AND new.expires_at > clock_timestamp() LOOP
				BEGIN
					PERFORM pg_advisory_xact_lock_shared(1);
					EXIT;
				EXCEPTION WHEN query_canceled THEN NULL;
				END;
			END LOOP;
			RETURN NULL;
		END $$;
		CREATE CONSTRAINT TRIGGER wait_for_the_test AFTER UPDATE ON pglock.leases DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION wait_for_the_test()`)
	p := pgtest.NewProxy(t, d)
	c := open(t, p.URL(), pglock.Config{})
	release(t, take(t, c, "a"))
	first := drawn(t, d)
	gate := d.Conn(t)
	if _, err := gate.Exec(t.Context(), `SELECT pg_advisory_lock(1)`); err != nil {
		t.Fatal(err)
	}
	call := acquiring(soon(t), c, "a", pglock.TTL(30*time.Second))
	d.WaitFor(t, pgtest.Waiting)
	behind := pgtest.Query[string](t, d, `SELECT (pid, backend_start)::text FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock'`)

	p.Cut()

	d.WaitFor(t, `SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE (pid, backend_start)::text = $1)`, behind)
	const grants = `SELECT count(DISTINCT token) FROM pglock.lease_history WHERE name = 'a' AND token > $1`
	if n := pgtest.Query[int](t, d, grants, first); n != 0 {
		t.Errorf("%d grants were committed before the gate was opened", n)
	}
	if _, err := gate.Exec(t.Context(), `SELECT pg_advisory_unlock(1)`); err != nil {
		t.Fatal(err)
	}
	l := granted(t, call)
	stillHeld(t, d, l)
	release(t, l)
	if holds(t, d, "a") {
		t.Error("held after the release")
	}
	if n := pgtest.Query[int](t, d, grants, first); n != 1 {
		t.Errorf("%d grants were committed, the call had one", n)
	}
}
