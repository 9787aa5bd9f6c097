package migrations_test

import (
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// A reply is lost, and the acquisition is sent again while it lives: the same grant, and nothing has changed.
func TestRetryFindsItsOwnGrant(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, reconnected := newCaller(t, db), newCaller(t, db)
	g := c.takeWith(ask{name: "a", label: "worker 7"})
	db.Age(t, "a", 4*time.Second)
	before := c.row("a")
	got := reconnected.again(g)
	if got.status != "granted" || got.token != g.token || got.owner != "worker 7" || got.remaining > 26*time.Second || got.remaining <= 0 {
		t.Errorf("%+v, want token %d with at most 26 s left", got, g.token)
	}
	want(t, "the row", c.row("a"), before)
}

// An acquisition is granted at most once: after its end it cannot come back, however late a duplicate arrives.
func TestAcquisitionIsGrantedOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, other := newCaller(t, db), newCaller(t, db)

	lapsed := c.take("lapsed")
	db.Age(t, "lapsed", time.Minute)
	before := c.row("lapsed")
	want(t, "retry after the expiry", c.again(lapsed).status, "spent")
	want(t, "the row", c.row("lapsed"), before)
	other.take("lapsed")
	want(t, "retry after a takeover", c.again(lapsed).status, "held")

	released := c.take("released")
	want(t, "release", c.release(released), "released")
	before = c.row("released")
	want(t, "late duplicate after the release", other.again(released).status, "spent")
	want(t, "the row", c.row("released"), before)
	other.take("released")
	want(t, "late duplicate while another holds", c.again(released).status, "held")
}

// While another holds, a retry learns who, and never an id that would let it act as them.
func TestHeldNamesTheHolder(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, other := newCaller(t, db), newCaller(t, db)
	g := c.takeWith(ask{name: "a", label: "sched-10", ttl: 20 * time.Second})
	got := other.acquire(ask{name: "a", label: "sched-1"})
	if got.status != "held" || got.token != g.token || got.owner != "sched-10" || got.since == nil ||
		got.remaining > 20*time.Second || got.remaining <= 0 {
		t.Errorf("%+v, want the holder's", got)
	}
}

// Owner labels decide nothing, whether equal or a prefix of another.
func TestLabelDecidesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	g := c.takeWith(ask{name: "a", label: "sched-10"})
	before := c.row("a")
	for _, label := range []string{"sched-1", "sched-10", "sched-100", ""} {
		mine := ask{name: "a", label: label, id: newID()}
		want(t, "acquire as "+label, c.acquire(mine).status, "held")
		want(t, "renew as "+label, c.renew(grant{name: "a", id: mine.id, token: g.token}), "taken")
		want(t, "release as "+label, c.release(grant{name: "a", id: mine.id, token: g.token}), "gone")
	}
	want(t, "the row", c.row("a"), before)
}

// The same owner label that lapses and comes back has a new, greater token.
func TestReacquisitionHasANewToken(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	var last int64
	for _, end := range []func(grant){
		func(g grant) { want(t, "release", c.release(g), "released") },
		func(grant) { db.Age(t, "a", time.Minute) },
		func(grant) { db.Exec(t, `DELETE FROM pglock.leases`) },
		func(grant) { db.Exec(t, `TRUNCATE pglock.leases`) },
		func(grant) {},
	} {
		g := c.takeWith(ask{name: "a", label: "w"})
		if g.token <= last {
			t.Errorf("token %d after %d", g.token, last)
		}
		last = g.token
		end(g)
	}
}

// One call may name a lock twice: it is granted once.
func TestNameTwiceInOneCallIsGrantedOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	got := one[string](c, `SELECT string_agg(status, ' ' ORDER BY ord) FROM pglock.acquire(ARRAY['a', 'a', 'a'],
		ARRAY[$1, $2, $1]::uuid[], 'me', ARRAY[30000000, 30000000, 30000000])`, newID(), newID())
	want(t, "answers", got, "granted held granted")
	want(t, "grants", one[int](c, `SELECT count(*) FROM pglock.leases WHERE token > 0`), 1)
}
