package migrations_test

import (
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

func TestRenewalExtendsByTheTTLOfTheGrant(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	g := c.takeWith(ask{name: "a", ttl: 20 * time.Second})
	db.Age(t, "a", 15*time.Second)
	clock := one[time.Time](c, `SELECT clock_timestamp()`)
	want(t, "renewal", c.renew(g), "renewed")
	if !one[bool](c, `SELECT expires_at >= $1::timestamptz + interval '20s' AND token = $2
		FROM pglock.leases WHERE name = 'a'`, clock, g.token) {
		t.Error("not renewed for the whole TTL, or another token")
	}
}

// A renewal never brings back what has lapsed, even when nobody else came, and never takes back what another got.
func TestRenewalNeverRevives(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	slow, other := newCaller(t, db), newCaller(t, db)
	a := slow.take("a")
	db.Age(t, "a", time.Minute)
	lapsed := slow.row("a")
	want(t, "renewal of a lapsed lease", slow.renew(a), "expired")
	want(t, "its row", slow.row("a"), lapsed)

	b := other.take("a")
	want(t, "renewal after a takeover", slow.renew(a), "taken")
	db.Age(t, "a", time.Minute)
	lapsed = slow.row("a")
	want(t, "renewal after the other lapsed too", slow.renew(a), "taken")
	want(t, "the other's row", slow.row("a"), lapsed)

	c := slow.take("a")
	if a.token >= b.token || b.token >= c.token {
		t.Errorf("tokens %d, %d, %d do not rise", a.token, b.token, c.token)
	}
}

// The lease may lapse while a renewal is on its way to the row.
func TestRenewalHeldUpUntilTheLapseIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, other := newCaller(t, db), newCaller(t, db)
	g := c.takeWith(ask{name: "a", ttl: time.Second})
	hookInto(t, db, beforeRenewLock)
	resume := stalled(t, db, c, func() string { return c.renew(g) })
	db.WaitFor(t, `SELECT expires_at <= clock_timestamp() FROM pglock.leases WHERE name = 'a'`) // aging would be another version
	before := other.row("a")
	want(t, "renewal", resume(), "expired")
	want(t, "the row", other.row("a"), before)
}

// The row is replaced while a renewal is on its way to it, and the grant is the same.
func TestRenewalHeldUpByAnotherChangeIsWritten(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, other := newCaller(t, db), newCaller(t, db)
	g := c.take("a")
	hookInto(t, db, beforeRenewLock)
	resume := stalled(t, db, c, func() string { return c.renew(g) })
	db.Exec(t, `UPDATE pglock.leases SET ttl = ttl`)
	before := other.row("a")
	want(t, "renewal", resume(), "renewed")
	if other.row("a") == before {
		t.Error("nothing was written")
	}
}

// Somebody's trigger keeps a row from being written: its lease is not renewed, and no answer says so.
func TestRenewalThatIsNotWrittenIsNone(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	a, b := c.take("a"), c.take("b")
	db.Exec(t, `CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER keep BEFORE UPDATE ON pglock.leases FOR EACH ROW WHEN (old.name = 'a') EXECUTE FUNCTION keep()`)
	want(t, "renewal of what is not written", c.renew(a), "locked")
	want(t, "renewal beside it", c.renew(b), "renewed")
	want(t, "renewal of both", c.renewAll(), "locked 2")
}

func TestRenewalHeldUpUntilATakeoverIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, other := newCaller(t, db), newCaller(t, db)
	g := c.take("a")
	hookInto(t, db, beforeRenewLock)
	resume := stalled(t, db, c, func() string { return c.renew(g) })
	db.Age(t, "a", time.Minute)
	other.take("a")
	before := other.row("a")
	want(t, "renewal", resume(), "taken")
	want(t, "the other's row", other.row("a"), before)
}

func TestRenewalOfALockedRowThatLapsedIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	g := c.takeWith(ask{name: "a", ttl: 4 * time.Second})
	unlock := lock(t, db, "a", "SHARE")
	want(t, "renewal", c.renew(g), "locked")
	db.WaitFor(t, `SELECT expires_at <= clock_timestamp() FROM pglock.leases WHERE name = 'a'`)
	want(t, "renewal after the lapse", c.renew(g), "expired")
	unlock()
	want(t, "renewal after the lock", c.renew(g), "expired")
}

// Only the very grant: both the acquisition and the token. What is deleted is not made anew.
func TestRenewalMatchesTheVeryGrant(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	g := c.takeWith(ask{name: "a", label: "sched-10"})
	before := c.row("a")
	want(t, "another token", c.renew(grant{name: "a", id: g.id, token: g.token + 1}), "taken")
	want(t, "an earlier token", c.renew(grant{name: "a", id: g.id, token: g.token - 1}), "taken")
	want(t, "token 0", c.renew(grant{name: "a", id: g.id, token: 0}), "taken")
	want(t, "another acquisition", c.renew(grant{name: "a", id: newID(), token: g.token}), "taken")
	want(t, "no token", one[string](c, `SELECT status FROM pglock.renew(ARRAY['a'], ARRAY[$1::uuid], '{}')`, g.id), "taken")
	want(t, "no acquisition", one[string](c, `SELECT status FROM pglock.renew(ARRAY['a'], '{}', ARRAY[$1::bigint])`, g.token), "taken")
	want(t, "the row", c.row("a"), before)

	db.Exec(t, `DELETE FROM pglock.leases`)
	want(t, "a deleted row", c.renew(g), "gone")
	want(t, "rows", one[int](c, `SELECT count(*) FROM pglock.leases`), 0)
	next := c.take("a")
	if next.token <= g.token {
		t.Errorf("token %d after %d", next.token, g.token)
	}
	want(t, "the old grant beside the new one", c.renew(g), "taken")
}

// A row that was planted and never granted belongs to nobody, whatever zero values are sent.
func TestVacantRowIsNobodys(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	db.Exec(t, `INSERT INTO pglock.leases (name) VALUES ('a')`)
	before := c.row("a")
	for _, id := range []string{"NULL", "'00000000-0000-0000-0000-000000000000'"} {
		for _, token := range []string{"NULL", "0", "-1"} {
			if got := one[string](c, `SELECT status FROM pglock.renew(ARRAY['a'], ARRAY[`+id+`]::uuid[], ARRAY[`+token+`]::bigint[])`); got == "renewed" || got == "locked" {
				t.Errorf("renewal with id %s and token %s: %s", id, token, got)
			}
		}
		want(t, "release with id "+id, one[string](c, `SELECT status FROM pglock.release(ARRAY['a'], ARRAY[`+id+`]::uuid[])`), "gone")
	}
	want(t, "the row", c.row("a"), before)
	c.take("a")
}
