package pglock_test

import (
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// A grant that the database is still at when its connection breaks may come to pass long after its call has failed. Behind
// a pooler nobody can end it. It is released when it comes, so that it keeps nobody away for the rest of its TTL.
func TestAGrantThatComesAfterItsCallFailedIsReleased(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	release(t, take(t, client(t, d), "a"))
	first := drawn(t, d)
	d.Exec(t, `
		CREATE FUNCTION wait_for_the_test() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS $$
		BEGIN
			IF new.owner = 'late' AND new.expires_at > clock_timestamp() THEN PERFORM pg_advisory_xact_lock_shared(1); END IF;
			RETURN NULL;
		END $$;
		CREATE CONSTRAINT TRIGGER wait_for_the_test AFTER UPDATE ON pglock.leases DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION wait_for_the_test()`)
	p := pgtest.NewProxy(t, &pgtest.Database{URL: pooler(t, d)})
	c := open(t, p.URL(), pglock.Config{Owner: "late"})
	release(t, take(t, c, "another")) // it knows by now that there is a pooler
	gate := d.Conn(t)
	if _, err := gate.Exec(t.Context(), `SELECT pg_advisory_lock(1)`); err != nil {
		t.Fatal(err)
	}
	call := async(func() acquired {
		l, err := c.TryAcquire(soon(t), "a", pglock.TTL(30*time.Second))
		return acquired{l, err}
	})
	d.WaitFor(t, pgtest.Waiting)
	p.Cut()
	if got := happens(t, "TryAcquire comes back", call); got.err == nil {
		t.Fatalf("TryAcquire = %v, while its grant is not committed", got.lease)
	}

	if _, err := gate.Exec(t.Context(), `SELECT pg_advisory_unlock(1)`); err != nil {
		t.Fatal(err)
	}
	d.WaitFor(t, `SELECT EXISTS (SELECT FROM pglock.leases WHERE name = 'a' AND token > $1 AND expires_at <= clock_timestamp())`, first)
	take(t, client(t, d), "a")
}
