package migrations_test

import (
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// A transaction that a lease protects holds FOR KEY SHARE on its row. A takeover must not pass by it, nor wait for it; the
// holder goes on.
func TestTakeoverWaitsOutAProtectedWrite(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	holder, other := newCaller(t, db), newCaller(t, db)
	g := holder.take("a")
	end := lock(t, db, "a", "KEY SHARE")
	want(t, "renewal by the holder", holder.renew(g), "renewed")
	db.Age(t, "a", time.Minute)
	before := other.row("a")
	want(t, "takeover of the expired row", other.try("a"), "retry")
	want(t, "its row", other.row("a"), before)
	end()
	if got := other.take("a"); got.token <= g.token {
		t.Errorf("token %d after %d", got.token, g.token)
	}
}

func TestReleasePassesAProtectedWrite(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	holder, other := newCaller(t, db), newCaller(t, db)
	g := holder.take("a")
	end := lock(t, db, "a", "KEY SHARE")
	want(t, "release", holder.release(g), "released")
	want(t, "takeover of the released row", other.try("a"), "retry")
	end()
	other.take("a")
}

// Somebody who locks rows by hand costs a holder a repetition, and not the lease.
func TestRudeLockIsNoLoss(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	for _, strength := range []string{"SHARE", "NO KEY UPDATE", "UPDATE"} {
		g := c.take(strength)
		unlock := lock(t, db, strength, strength)
		want(t, "another's try", c.try(strength), "held")
		want(t, "renewal", c.renew(g), "locked")
		want(t, "release", c.release(g), "locked")
		unlock()
		want(t, "renewal after it", c.renew(g), "renewed")
		want(t, "release after it", c.release(g), "released")
	}
}

// What another has done and not committed is not waited for, and not believed.
func TestUncommittedVerbsStallNobody(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	first, other := newCaller(t, db), newCaller(t, db)
	g := first.take("a")

	first.exec(`BEGIN`)
	want(t, "release", first.release(g), "released")
	want(t, "try during the release", other.try("a"), "held")
	first.exec(`ROLLBACK`)
	want(t, "renewal after the rollback", first.renew(g), "renewed")

	db.Age(t, "a", time.Minute)
	first.exec(`BEGIN`)
	next := first.take("a")
	want(t, "try during the grant", other.try("a"), "retry")
	want(t, "the same grant during the grant", other.again(next).status, "retry")
	first.exec(`COMMIT`)
	if got := other.again(next); got.status != "granted" || got.token != next.token {
		t.Errorf("the same acquisition after the commit: %+v, want token %d", got, next.token)
	}
}

// One locked row among ten thousand costs the others nothing.
func TestTenThousandRenewalsPassALockedRow(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	c.takeTenThousand()
	unlock := lock(t, db, "job/5000", "SHARE")
	want(t, "answers", c.renewAll(), "locked 1, renewed 9999")
	unlock()
}

// takeTenThousand makes so many leases, job/1 and so on, without the long way.
func (c *caller) takeTenThousand() {
	c.t.Helper()
	c.exec(`INSERT INTO pglock.leases (name, token, acquisition, expires_at, ttl)
		SELECT 'job/' || i, i, gen_random_uuid(), clock_timestamp() + interval '1 h', interval '1 h' FROM generate_series(1, 10000) i`)
}

// renewAll renews every lease in one call and says how many had which answer, or that all had one.
func (c *caller) renewAll() string {
	c.t.Helper()
	return one[string](c, `SELECT string_agg(r.says, ', ' ORDER BY r.says) FROM
		(SELECT CASE WHEN min(ord) = 0 THEN 'all ' || status ELSE status || ' ' || count(*) END AS says FROM pglock.renew(
			(SELECT array_agg(name ORDER BY name) FROM pglock.leases), (SELECT array_agg(acquisition ORDER BY name) FROM pglock.leases),
			(SELECT array_agg(token ORDER BY name) FROM pglock.leases)) GROUP BY status) r`)
}
