package migrations_test

import (
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// A name may be kept from others beyond the lease, released or not. A takeover needs both instants past.
func TestTakeoverNeedsBothInstantsPast(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, other := newCaller(t, db), newCaller(t, db)
	g := c.takeWith(ask{name: "a", hold: time.Hour, label: "job"})
	want(t, "release", c.release(g), "released")
	got := other.acquire(ask{name: "a"})
	if got.status != "kept" || got.owner != "job" || got.remaining <= 50*time.Minute || got.remaining > time.Hour {
		t.Errorf("after the release: %+v, want held for the rest of an hour", got)
	}
	want(t, "the same acquisition", c.again(g).status, "spent")
	db.Age(t, "a", time.Hour)
	next := other.takeWith(ask{name: "a", hold: 5 * time.Second})
	db.Age(t, "a", 5*time.Second)
	want(t, "hold over, lease alive", c.try("a"), "held")
	want(t, "release", other.release(next), "released")
	c.take("a")
}

// The hold of one grant does not outlive the next one, and a renewal does not move it.
func TestHoldBelongsToItsGrant(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	notBefore := func() string {
		return one[string](c, `SELECT CASE not_before WHEN 'epoch' THEN 'none' ELSE (not_before - granted_at)::text END FROM pglock.leases`)
	}
	for _, hold := range []time.Duration{0, -time.Second} {
		c.release(c.takeWith(ask{name: "a", hold: hold}))
		want(t, "hold of "+hold.String(), notBefore(), "none")
	}
	g := c.takeWith(ask{name: "a", hold: time.Hour})
	before := notBefore()
	want(t, "renewal", c.renew(g), "renewed")
	want(t, "hold after the renewal", notBefore(), before)
	c.release(g)
	db.Age(t, "a", 2*time.Hour)
	c.take("a")
	want(t, "hold after the next grant", notBefore(), "none")
}

// Label and metadata are stored with the grant, and shown; the acquisition is shown to nobody.
func TestInspectShowsTheGrant(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	meta := `{"job": "reindex", "try": 3}`
	g := c.takeWith(ask{name: "a", label: "host/7", meta: &meta, hold: time.Hour})
	db.Exec(t, `INSERT INTO pglock.leases (name) VALUES ('never granted')`)
	view := func() string {
		return one[string](c, `SELECT string_agg(concat_ws(' ', name, held, owner, token = $1, metadata ->> 'job', remaining > '0', free_in > '50 min'), ';')
			FROM pglock.inspect`, g.token)
	}
	want(t, "while it is held", view(), "a t host/7 t reindex t t")
	db.Age(t, "a", 5*time.Minute)
	want(t, "when it has lapsed", view(), "a f host/7 t reindex f t")
	db.Age(t, "a", 2*time.Hour)
	want(t, "after the hold", view(), "a f host/7 t reindex f f")
	columns := one[int](c, `SELECT count(*) FROM information_schema.columns WHERE table_schema = 'pglock' AND table_name = 'inspect' AND data_type = 'uuid'`)
	want(t, "columns with an acquisition", columns, 0)

	c.take("a")
	want(t, "metadata of the next grant", one[bool](c, `SELECT metadata IS NULL AND owner = '' FROM pglock.leases WHERE name = 'a'`), true)
	bad := "{"
	want(t, "metadata that is no JSON", sqlState(c.fails(acquireOne, "b", newID(), "", int64(1e6), int64(0), &bad, int64(0), 0, "", int64(0))), "22P02")
}

// The TTL is between 0.1 s and the cap, and never wraps.
func TestTTLIsBounded(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	capUs := one[int64](c, `SELECT cap_us FROM pglock.guard`)
	for _, name := range []string{"new", "free", "held"} { // new is not planted by a refused call
		db.Exec(t, `INSERT INTO pglock.leases (name, expires_at) SELECT $1::text, CASE $1 WHEN 'held' THEN clock_timestamp() + interval '1 min'
			ELSE 'epoch' END WHERE $1 <> 'new'`, name)
		for us, wanted := range map[int64]string{
			-1 << 63: "invalid", -1: "invalid", 0: "invalid", 99_999: "invalid", capUs + 1: "ttl_too_long", 1<<63 - 1: "ttl_too_long",
		} {
			got := one[string](c, `SELECT concat_ws(' ', status, nullif(remaining_us, 0)) FROM
				pglock.acquire(ARRAY[$1::text], ARRAY[$2::uuid], '', ARRAY[$3::bigint]) WHERE status = $4`, name, newID(), us, wanted)
			if wanted == "ttl_too_long" && got != "ttl_too_long 30000000" || got == "" {
				t.Errorf("TTL of %d us for a %s name: %q, want %s", us, name, got, wanted)
			}
		}
	}
	want(t, "rows granted or planted", one[int](c, `SELECT count(*) FROM pglock.leases WHERE token > 0 OR name = 'new'`), 0)
	c.takeWith(ask{name: "free", ttl: 100 * time.Millisecond})
	c.takeWith(ask{name: "new", ttl: time.Duration(capUs) * time.Microsecond})
}
