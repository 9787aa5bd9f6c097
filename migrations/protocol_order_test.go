package migrations_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// Whoever is granted a lock later has the greater token, however long its call was held up, wherever in the call, and
// whatever became of the row meanwhile.
func TestStalledCallIsNeverGrantedAnOlderToken(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	slow, quick := newCaller(t, db), newCaller(t, db)
	hookInto(t, db, beforeGrantLock)
	hookInto(t, db, beforePlant)
	const remove, replant = `DELETE FROM pglock.leases WHERE name = $1`, `INSERT INTO pglock.leases (name) VALUES ($1)`
	for _, known := range []bool{true, false} { // the name has a row when the call begins
		for name, after := range map[string][]string{"kept": {}, "deleted": {remove}, "replanted": {remove, replant}} {
			name = fmt.Sprintf("%s, known %t", name, known)
			if known {
				quick.release(quick.take(name))
			}
			resume := stalled(t, db, slow, func() answer { return slow.acquire(ask{name: name}) })
			other := quick.take(name)
			want(t, "release", quick.release(other), "released")
			for _, sql := range after {
				quick.exec(sql, name)
			}

			got := resume()

			if got.status == "granted" && got.token <= other.token || got.status != "granted" && got.status != "retry" {
				t.Errorf("%s: %+v after token %d, want a greater one, or retry", name, got, other.token)
			}
		}
	}
}

// A call that finds the row free, and another's by the time it has the lock, is not granted it.
func TestStalledCallIsNotGrantedWhatIsTaken(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	slow, quick := newCaller(t, db), newCaller(t, db)
	quick.release(quick.take("a"))
	hookInto(t, db, beforeGrantLock)
	resume := stalled(t, db, slow, func() string { return slow.try("a") })
	other := quick.take("a")
	before := quick.row("a")

	want(t, "acquire", resume(), "held")

	want(t, "the other's row", quick.row("a"), before)
	want(t, "the other's renewal", quick.renew(other), "renewed")
}

// The TTL counts from when the lock was got, not from when it was asked for or its transaction began.
func TestTTLCountsFromTheGrant(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, other := newCaller(t, db), newCaller(t, db)
	c.release(c.take("a"))
	hookInto(t, db, beforeGrantLock)
	c.exec(`BEGIN`)
	resume := stalled(t, db, c, func() answer { return c.acquire(ask{name: "a", ttl: 5 * time.Second, hold: 7 * time.Second}) })
	clock := one[time.Time](other, `SELECT clock_timestamp()`)

	got := resume()
	c.exec(`COMMIT`)

	if got.status != "granted" || got.since.Before(clock) || got.remaining != 5*time.Second {
		t.Errorf("%+v, want since %v or later", got, clock)
	}
	if !one[bool](c, `SELECT granted_at >= $1 AND expires_at >= $1::timestamptz + interval '5s'
		AND not_before >= $1::timestamptz + interval '7s'
		FROM pglock.leases WHERE name = 'a'`, clock) {
		t.Error("the row counts from before the grant")
	}
}

// An acquired row that somebody had locked and gave back lives for the whole TTL.
func TestGrantAfterARudeLockLivesItsWholeTTL(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, other := newCaller(t, db), newCaller(t, db)
	g := c.take("a")
	db.Age(t, "a", time.Minute)
	unlock := lock(t, db, "a", "UPDATE")
	want(t, "acquire under the lock", other.try("a"), "retry")
	unlock()
	clock := one[time.Time](other, `SELECT clock_timestamp()`)
	got := other.take("a")
	if got.token <= g.token {
		t.Errorf("token %d after %d", got.token, g.token)
	}
	if !one[bool](c, `SELECT expires_at >= $1::timestamptz + ttl FROM pglock.leases WHERE name = 'a'`, clock) {
		t.Error("the lease is shorter than its TTL")
	}
	want(t, "the next one", c.try("a"), "held")
}
