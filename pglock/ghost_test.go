package pglock_test

import (
	"context"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// lateGrant has a client ask for the lock "a", cuts it off while the database is at the commit, and lets that go on when the call
// has failed. What was granted that late must be released; then somebody else takes the lock.
func lateGrant(t *testing.T, d *pgtest.Database, p *pgtest.Proxy, pool *pgxpool.Pool) {
	t.Helper()
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
	c, err := pglock.New(pool, pglock.Config{Owner: "late"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { wantErr(t, "Close", c.Close(soon(t)), nil) })
	release(t, take(t, c, "another")) // it knows by now what it is connected to
	gate := d.Conn(t)
	if _, err := gate.Exec(t.Context(), `SELECT pg_advisory_lock(1)`); err != nil {
		t.Fatal(err)
	}
	call := async(func() acquired {
		l, err := c.TryAcquire(soon(t), "a", pglock.TTL(30*time.Second), pglock.HoldAtLeast(24*time.Hour))
		return acquired{l, err}
	})
	d.WaitFor(t, pgtest.Waiting)
	p.Refuse(true) // the driver's request to cancel the statement as well
	p.Cut()
	if got := happens(t, "TryAcquire comes back", call); got.err == nil {
		t.Fatalf("TryAcquire = %v, while its grant is not committed", got.lease)
	}

	failed := pgtest.Query[time.Time](t, d, `SELECT clock_timestamp()`)
	p.Refuse(false)
	d.WaitFor(t, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
		AND query LIKE '%.release(%' AND state = 'idle' AND query_start > $1)`, failed) // asked for too early, and found nothing
	if _, err := gate.Exec(t.Context(), `SELECT pg_advisory_unlock(1)`); err != nil {
		t.Fatal(err)
	}
	d.WaitFor(t, `SELECT EXISTS (SELECT FROM pglock.leases WHERE name = 'a' AND token > $1 AND expires_at <= clock_timestamp())`, first)
	take(t, client(t, d), "a")
}

// A grant that the database is still at when its connection breaks may come to pass long after its call has failed. Behind
// a pooler nobody can end it. It is released when it comes, so that it keeps nobody away.
func TestAGrantThatComesAfterItsCallFailedIsReleased(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	p := pgtest.NewProxy(t, &pgtest.Database{URL: pooler(t, d)})
	pool, err := pgxpool.New(t.Context(), p.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	lateGrant(t, d, p, pool)
}

// A role that a hook has set may not see when its backend began, so it cannot be sure to end the right one.
func TestAGrantThatComesLateToTheRoleOfAHookIsReleased(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	role := d.Role(t)
	d.Exec(t, `SELECT pglock.grant_locker('`+role+`')`)
	p := pgtest.NewProxy(t, d)
	pc, err := pgxpool.ParseConfig(p.URL())
	if err != nil {
		t.Fatal(err)
	}
	pc.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `SET ROLE `+role)
		return err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), pc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	lateGrant(t, d, p, pool)
}
