package migrations_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// The kinds of lock, as acquire has them.
const (
	alone  = 0
	reader = -1
)

// tryAs is the status of one more attempt to hold a name as that.
func (c *caller) tryAs(name string, kind int) string {
	c.t.Helper()
	return c.acquire(ask{name: name, kind: kind}).status
}

func (c *caller) takeAs(name string, kind int) grant {
	c.t.Helper()
	return c.takeWith(ask{name: name, kind: kind})
}

// againAs sends the acquisition of a grant once more.
func (c *caller) againAs(g grant, kind int) answer {
	c.t.Helper()
	return c.acquire(ask{name: g.name, id: g.id, kind: kind})
}

// acquireAll asks for several names at once, and answers what was said of each.
func (c *caller) acquireAll(id string, kind int, names ...string) string {
	c.t.Helper()
	return one[string](c, `SELECT string_agg(status, ' ' ORDER BY ord) FROM pglock.acquire($1::text[], array_fill($2::uuid, ARRAY[$3::int]), '',
		array_fill(30000000::bigint, ARRAY[$3]), kinds => array_fill($4::int, ARRAY[$3]), lots => array_fill(7, ARRAY[$3]))`, names, id, len(names), kind)
}

// tie ties the caller's transaction to a grant, as fence.Hold does.
func (c *caller) tie(g grant) string {
	c.t.Helper()
	return one[string](c, `SELECT verdict FROM pglock.fence_check($1, $2, $3, 60000, 60000)`, g.name, g.slot, g.token)
}

func (c *caller) markAs(client, name string, wait int64, kind int) string {
	c.t.Helper()
	return one[string](c, `SELECT status FROM pglock.mark(ARRAY[$1::text], $2::uuid, ARRAY[$3::bigint], ARRAY[false], ARRAY[$4::int])`, name, client, wait, kind)
}

// lapse lets the lease of one slot run out.
func (c *caller) lapse(g grant) {
	c.t.Helper()
	c.exec(`UPDATE pglock.leases SET expires_at = clock_timestamp() - interval '1 ms' WHERE name = $1 AND slot = $2`, g.name, g.slot)
}

func (c *caller) begin()    { c.t.Helper(); c.exec(`BEGIN`) }
func (c *caller) commit()   { c.t.Helper(); c.exec(`COMMIT`) }
func (c *caller) rollback() { c.t.Helper(); c.exec(`ROLLBACK`) }

// What a grant finds has to be true when it commits: what another is granting meanwhile is in no snapshot.
func TestAGrantUnderWayKeepsOutWhatItExcludes(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	first, other := newCaller(t, db), newCaller(t, db)
	for i, c := range []struct {
		under, asked   int
		during, before string // the status while the first is not committed, and then
	}{
		{reader, alone, "retry", "held"},
		{reader, reader, "granted", "granted"},
		{reader, 2, "retry", "other_kind"},
		{alone, reader, "retry", "held"},
		{alone, 2, "retry", "other_kind"},
		{1, 1, "retry", "held"},
		{2, 2, "granted", "held"}, // the second of two, and then there is no third
		{2, 3, "retry", "other_kind"},
		{2, alone, "retry", "other_kind"},
		{2, reader, "retry", "other_kind"},
	} {
		for n, was := range []int{c.under, alone, c.asked} { // what the name was before, when somebody held it last
			what := fmt.Sprintf("case %d, %d beside %d in a name that was %d", i, c.asked, c.under, was)
			name := fmt.Sprintf("%d/%d", i, n)
			first.release(first.takeAs(name, was))
			first.begin()
			g := first.takeAs(name, c.under)
			during := other.acquire(ask{name: name, kind: c.asked})
			if during.status != c.during && (was == c.under || during.status != "retry") { // a name becomes what it is under one lock
				t.Errorf("%s: %q while the first is not committed, want %q", what, during.status, c.during)
			}
			first.commit()
			if during.status == "retry" && c.during == "granted" {
				want(t, what+", once more", other.tryAs(name, c.asked), "granted")
			}
			want(t, what+", after it", other.tryAs(name, c.asked), c.before)
			want(t, what+", renewal", first.renew(g), "renewed")
		}
	}
}

// A renewal just before the expiry is in no snapshot, and by the time others look, the expiry that they see has passed. A release
// that comes to nothing has let nobody in.
func TestARenewalUnderWayKeepsOutWhatItExcludes(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	holder, other := newCaller(t, db), newCaller(t, db)
	for i, c := range []struct {
		held, asked int
		after       string
	}{{reader, alone, "held"}, {alone, reader, "held"}, {1, 1, "held"}, {1, 2, "other_kind"}, {1, alone, "other_kind"}, {reader, 2, "other_kind"}} {
		name := fmt.Sprint("renewed ", i)
		holder.release(holder.takeAs(name, reader)) // whoever is alone, was among readers
		g := holder.takeAs(name, c.held)
		holder.lapse(g)
		holder.begin()
		holder.exec(`UPDATE pglock.leases SET expires_at = clock_timestamp() + ttl WHERE name = $1 AND slot = $2`, name, g.slot)
		want(t, name+", while the renewal is not committed", other.tryAs(name, c.asked), "retry")
		holder.commit()
		want(t, name+", after it", other.tryAs(name, c.asked), c.after)

		holder.begin()
		want(t, "release", holder.release(g), "released")
		want(t, name+", while the release is not committed", other.tryAs(name, c.asked), c.after)
		holder.rollback()
		want(t, name+", after a release that came to nothing", other.tryAs(name, c.asked), c.after)
		want(t, "renewal", holder.renew(g), "renewed")
	}
}

// Nobody was there at the first look, and somebody is when the gate is locked.
func TestWhoeverIsGrantedMeanwhileIsSeenUnderTheLock(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	slow, other := newCaller(t, db), newCaller(t, db)
	hookInto(t, db, beforeClaimLock)
	for i, c := range []struct{ granted, asked int }{{reader, alone}, {1, 1}} {
		name := fmt.Sprint("late ", i)
		other.release(other.takeAs(name, c.granted))
		resume := stalled(t, db, slow, func() string { return slow.tryAs(name, c.asked) })
		g := other.takeAs(name, c.granted)
		want(t, fmt.Sprintf("%d, after %d was granted", c.asked, c.granted), resume(), "held")
		want(t, "renewal", other.renew(g), "renewed")
	}
}

// What was held until it ran out is kept from those whom it excluded, and from nobody else.
func TestADelayKeepsOutWhatTheGrantExcluded(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	for i, k := range []struct {
		held, asked int
		wanted      string
	}{{reader, alone, "kept"}, {reader, reader, "granted"}, {reader, 2, "other_kind"}, {alone, reader, "kept"}, {1, 1, "kept"}, {2, 2, "granted"}} {
		for end, wanted := range map[string]string{"lapsed": k.wanted, "released": "granted"} {
			name := fmt.Sprint(end, i)
			c.release(c.takeAs(name, reader))
			g := c.takeWith(ask{name: name, kind: k.held, delay: time.Hour})
			if end == "lapsed" {
				c.lapse(g)
			} else {
				c.release(g)
			}
			want(t, fmt.Sprintf("%d after %d, %s", k.asked, k.held, end), c.tryAs(name, k.asked), wanted)
		}
	}
}

// A transaction that is tied to a grant keeps out whatever the grant did, until it ends, though the grant is over; what went beside the
// grant goes on.
func TestATiedTransactionKeepsOutWhatItsGrantExcluded(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	tied, holder, other := newCaller(t, db), newCaller(t, db), newCaller(t, db)
	for i, c := range []struct {
		held   int
		beside []int
		out    []int
	}{
		{reader, []int{reader}, []int{alone, 2}},
		{alone, nil, []int{alone, reader, 2}},
		{1, nil, []int{1, 2, alone, reader}},
		{2, []int{2}, []int{1, alone, reader}},
	} {
		for _, end := range []string{"released", "lapsed"} {
			name := fmt.Sprint(i, " ", end)
			holder.release(holder.takeAs(name, reader)) // whoever is alone, was among readers
			g := holder.takeAs(name, c.held)
			tied.begin()
			want(t, name, tied.tie(g), "held")
			want(t, name+": renewal", holder.renew(g), "renewed")
			if end == "released" {
				want(t, name, holder.release(g), "released")
			} else {
				holder.lapse(g)
			}
			for _, kind := range c.out {
				want(t, fmt.Sprintf("%s: %d beside the transaction of %d", name, kind, c.held), other.tryAs(name, kind), "retry")
			}
			for _, kind := range c.beside {
				b := other.takeAs(name, kind)
				if b.slot == g.slot {
					t.Errorf("%s: slot %d was granted again beside its transaction", name, b.slot)
				}
				want(t, name+": release", other.release(b), "released")
			}
			tied.commit()
			for _, kind := range append(c.out, c.beside...) {
				other.release(other.takeAs(name, kind))
			}
		}
	}
}

// An acquisition is granted once, into one slot, however often it is sent, and on however many connections.
func TestARepeatedAcquisitionOfASlotFindsItsOwnGrant(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	first, again := newCaller(t, db), newCaller(t, db)
	for _, kind := range []int{reader, 1, 3, alone} {
		name := fmt.Sprint("kind ", kind)
		first.release(first.takeAs(name, reader))
		first.begin()
		g := first.takeAs(name, kind)
		want(t, name+", before it has committed", again.againAs(g, kind).status, "retry")
		first.commit()
		got := again.againAs(g, kind)
		if got.status != "granted" || got.token != g.token || got.slot != g.slot {
			t.Errorf("%s, sent again: %+v, want token %d in slot %d", name, got, g.token, g.slot)
		}
		want(t, name+", grants", one[int](first, `SELECT count(*) FROM pglock.leases WHERE acquisition = $1`, g.id), 1)
		unknown := g
		unknown.slot = -1
		want(t, name+", released by who does not know the slot", again.release(unknown), "released")
		want(t, name+", released again", again.release(unknown), "gone")
		want(t, name+", renewed after it", again.renew(g), "expired")
		want(t, name+", sent after its release", again.againAs(g, kind).status, "spent")
	}

	for _, kind := range []int{reader, 3, alone} {
		name := fmt.Sprint("revoked ", kind)
		g := first.takeAs(name, kind)
		want(t, name, one[string](first, `SELECT status FROM pglock.revoke($1, $2, '', 0, true)`, name, newID()), "revoked")
		want(t, name+", sent again", again.againAs(g, kind).status, "spent")
		first.lapse(g)
		want(t, name+", sent again when it would have run out", again.againAs(g, kind).status, "spent")
		want(t, name+", renewed", again.renew(g), "revoked")
		again.takeAs(name, kind)
	}

	id := newID()
	want(t, "three names", first.acquireAll(id, alone, "x", "y", "z"), "granted granted granted")
	want(t, "again", again.acquireAll(id, alone, "x", "y", "z"), "granted granted granted")
	want(t, "tokens", one[int](first, `SELECT count(DISTINCT token) FROM pglock.leases WHERE acquisition = $1`, id), 1)
	want(t, "release of one", first.release(grant{name: "y", id: id}), "released")
	want(t, "again, when one is over", again.acquireAll(id, alone, "x", "y", "z"), "spent spent spent")
	want(t, "x", again.try("x"), "held")
	want(t, "y", again.try("y"), "granted")
}

// A lot that meets what is held, or locked, keeps nothing.
func TestALotIsGrantedAllOrNone(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, other := newCaller(t, db), newCaller(t, db)
	held := other.takeAs("m", reader)
	for _, kind := range []int{alone, 2} {
		wanted := map[int]string{alone: "held", 2: "other_kind"}[kind]
		want(t, "a held name in the middle", c.acquireAll(newID(), kind, "a", "m", "z"), "spared "+wanted+" spared")
		other.begin()
		other.takeAs("n", kind)
		want(t, "a name that is being granted", c.acquireAll(newID(), kind, "a", "n", "z"), "spared retry spared")
		other.rollback()
		want(t, "a bad name", c.acquireAll(newID(), kind, "a", "", "z"), "invalid invalid invalid")
		for _, name := range []string{"a", "n", "z"} {
			other.release(other.takeAs(name, alone)) // whatever it was asked for as
		}
	}
	want(t, "m", other.release(held), "released")
	want(t, "when it is free", c.acquireAll(newID(), alone, "a", "m", "z"), "granted granted granted")
	want(t, "beside it", other.acquireAll(newID(), reader, "z", "y"), "held spared")
}

// Slot 0 is what keeps the others out, so it stays while there are others; where somebody has deleted it, they still count.
func TestSlotZeroStaysWhileThereAreOthers(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, other := newCaller(t, db), newCaller(t, db)
	slots := func(name string) string {
		t.Helper()
		return one[string](c, `SELECT coalesce(string_agg(slot::text, ' ' ORDER BY slot), 'none') FROM pglock.leases WHERE name = $1`, name)
	}
	live, idle := c.takeAs("a", reader), c.takeAs("a", reader)
	c.release(idle)
	db.Age(t, "a", 24*time.Hour)
	c.exec(`UPDATE pglock.leases SET expires_at = clock_timestamp() + interval '1 h' WHERE name = 'a' AND slot = $1`, live.slot)
	want(t, "pruned", c.prune("1 hour", 100), 1)
	want(t, "slots", slots("a"), fmt.Sprint("0 ", live.slot))
	want(t, "renewal", c.renew(live), "renewed")

	c.exec(`DELETE FROM pglock.leases WHERE name = 'a' AND slot = 0`)
	for _, kind := range []int{alone, 2} {
		if got := other.tryAs("a", kind); got != "held" && got != "other_kind" {
			t.Errorf("%d beside a reader whose slot 0 was deleted: %q", kind, got)
		}
	}
	want(t, "another reader", other.tryAs("a", reader), "granted")

	// A grant of a slot that came after the look for idle names is seen under the lock, or is met.
	c.release(c.takeAs("b", reader))
	db.Age(t, "b", 24*time.Hour)
	want(t, "pruned", c.prune("1 hour", 100), 2)
	c.exec(`INSERT INTO pglock.leases (name, permits) VALUES ('b', -1)`)
	db.Age(t, "b", 24*time.Hour)
	other.begin()
	g := other.takeAs("b", reader)
	want(t, "pruned beside a grant", c.prune("1 hour", 100), 0)
	other.commit()
	want(t, "slots after the grant", slots("b"), fmt.Sprint("0 ", g.slot))
	other.release(g)
	db.Age(t, "b", 24*time.Hour)
	c.begin()
	want(t, "pruned", c.prune("1 hour", 100), 2)
	want(t, "a reader beside a prune", other.tryAs("b", reader), "retry")
	c.commit()
	want(t, "a reader after it", other.tryAs("b", reader), "granted")

	c.exec(`DELETE FROM pglock.leases; INSERT INTO pglock.leases (name, permits) VALUES ('late', -1)`)
	db.Age(t, "late", 24*time.Hour)
	hookInto(t, db, beforePruneLock)
	resume := stalled(t, db, c, func() int { return c.prune("1 hour", 100) })
	g = other.takeAs("late", reader)
	want(t, "pruned, after a grant", resume(), 0)
	want(t, "slots", slots("late"), fmt.Sprint("0 ", g.slot))
}

// Whoever releases last wakes the writer, and a writer all readers up to the next writer. A permit wakes one for each.
func TestAReleaseWakesWhoeverItMakesRoomFor(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	a, b := newCaller(t, db), newCaller(t, db)
	s := []sleeper{newSleeper(t, db), newSleeper(t, db), newSleeper(t, db), newSleeper(t, db)}
	woken := func(what string, wanted ...string) {
		t.Helper()
		for i := range s {
			if wanted[i] == "" {
				s[i].wantNotified(what)
			} else {
				s[i].wantNotified(what, wanted[i])
			}
		}
	}
	granted := func(name string, who ...int) { // their waits are over
		t.Helper()
		for _, i := range who {
			s[i].exec(`SELECT pglock.wait_over($1, $2)`, name, s[i].id)
		}
	}
	one, two := a.takeAs("doc", reader), b.takeAs("doc", reader)
	want(t, "the writer's mark", s[0].markAs(s[0].id, "doc", 1, alone), "marked")
	for i, kind := range []int{reader, reader, alone} {
		want(t, "the mark of who came later", s[i+1].markAs(s[i+1].id, "doc", 1, kind), "marked")
	}
	want(t, "a reader who came later", a.tryAs("doc", reader), "held")
	want(t, "a reader who waits", a.acquire(ask{name: "doc", kind: reader, client: s[1].id}).status, "held")

	want(t, "the first release", a.release(one), "released")
	woken("the first of two readers", "", "", "", "")
	want(t, "the last release", b.release(two), "released")
	woken("the last reader", "1 doc", "", "", "")
	w := a.takeAs("doc", alone)
	granted("doc", 0)
	want(t, "its release", a.release(w), "released")
	woken("the writer", "", "1 doc", "1 doc", "")
	granted("doc", 1, 2)
	s[3].exec(`SELECT pglock.unmark(ARRAY['doc'], $1, ARRAY[1])`, s[3].id)

	// Two that are the last at the same moment: neither sees that the other is over, too.
	one, two = a.takeAs("doc", reader), b.takeAs("doc", reader)
	want(t, "the writer's mark", s[0].markAs(s[0].id, "doc", 2, alone), "marked")
	a.begin()
	want(t, "a release", a.release(one), "released")
	want(t, "another one beside it", b.release(two), "locked")
	a.commit()
	woken("a release beside another", "", "", "", "")
	want(t, "the other one, sent again", b.release(two), "released")
	woken("both", "2 doc", "", "", "")
	granted("doc", 0)

	// A writer gives up: the readers behind it go on.
	one = a.takeAs("doc", reader)
	want(t, "the writer's mark", s[0].markAs(s[0].id, "doc", 3, alone), "marked")
	want(t, "the mark of a reader behind it", s[1].markAs(s[1].id, "doc", 3, reader), "marked")
	want(t, "the mark of a reader behind it", s[2].markAs(s[2].id, "doc", 3, reader), "marked")
	s[0].exec(`SELECT pglock.unmark(ARRAY['doc'], $1, ARRAY[3])`, s[0].id)
	woken("the writer gives up", "", "3 doc", "3 doc", "")
	a.release(one)

	// Permits, both released at the same moment, and taken by a mark on its way.
	one, two = a.takeAs("jobs", 2), b.takeAs("jobs", 2)
	for i := range 3 {
		want(t, "a mark", s[i].markAs(s[i].id, "jobs", 4, 2), "marked")
	}
	a.begin()
	want(t, "a release", a.release(one), "released")
	want(t, "another one beside it", b.release(two), "released")
	want(t, "a mark beside a release", s[3].markAs(s[3].id, "jobs", 4, 2), "retry")
	a.commit()
	woken("two permits", "4 jobs", "4 jobs", "", "")
	one = a.takeAs("jobs", 2)
	s[3].begin()
	b.takeAs("jobs", 2)
	want(t, "a mark", s[3].markAs(s[3].id, "jobs", 5, 2), "marked")
	want(t, "a release beside a mark", a.release(one), "locked")
	s[3].commit()
	want(t, "the same, sent again", a.release(one), "released")
	woken("one permit", "", "", "4 jobs", "")
}

// Asking for what is held is a read, whatever it is held as.
func TestLosingCostsNothingForAnyKind(t *testing.T) {
	t.Parallel()
	_, db := pgtest.OwnServer(t, pgtemp.Options{Settings: map[string]string{
		"autovacuum": "off", "wal_level": "minimal", "max_wal_senders": "0", // the server itself writes no WAL from time to time
	}})
	c, watch := newCaller(t, db), newCaller(t, db)
	watch.exec(`SET default_transaction_read_only = on`)
	c.takeAs("reader", reader)
	c.release(c.takeAs("writer", reader))
	c.takeAs("writer", alone)
	c.takeAs("permit", 1)
	c.takeAs("awaited", reader)
	want(t, "a writer's mark", c.markAs(newID(), "awaited", 1, alone), "marked")
	g := c.takeAs("mine", reader)
	for _, call := range []struct {
		what, wanted string
		ask          func() string
	}{
		{"alone, beside a reader", "held", func() string { return c.tryAs("reader", alone) }},
		{"a reader beside a writer", "held", func() string { return c.tryAs("writer", reader) }},
		{"a reader that makes way for a writer", "held", func() string { return c.tryAs("awaited", reader) }},
		{"one permit too many", "held", func() string { return c.tryAs("permit", 1) }},
		{"another kind", "other_kind", func() string { return c.tryAs("permit", 2) }},
		{"a lot", "spared held spared", func() string { return c.acquireAll(newID(), alone, "free", "reader", "free too") }},
		{"a retry of what is held", "granted", func() string { return c.againAs(g, reader).status }},
	} {
		want(t, call.what, call.ask(), call.wanted) // what the server notes on first sight is not counted
		before := one[string](watch, footprint)
		for range 20 {
			want(t, call.what, call.ask(), call.wanted)
		}
		want(t, "footprint of "+call.what, one[string](watch, footprint), before)
	}
	before := one[string](watch, footprint)
	c.takeAs("reader", reader)
	if after := one[string](watch, footprint); after == before || !strings.Contains(after, "reader") {
		t.Error("a grant has no footprint either: nothing was measured")
	}
}

// Whoever is granted the name alone while a revocation waits is left alone: the token that the revocation answers is that one's, and
// no slot gets a later one, not even while that process hands the name on, which others see only once it is committed.
func TestARevocationLeavesTheNextHolderAlone(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, next := newCaller(t, db), newCaller(t, db)
	c.release(c.takeAs("a", reader))
	c.takeAs("a", alone)
	const revoke = `SELECT status || ' ' || coalesce(token, 0) FROM pglock.revoke('a', $1, 'operator', 0, $2)`
	id := newID()
	want(t, "the first answer", strings.Fields(one[string](c, revoke, id, true))[0], "revoked")
	db.Age(t, "a", time.Minute)
	held := next.takeAs("a", alone)
	next.begin()
	want(t, "the hand-over", one[string](next, `SELECT string_agg(status, ' ') FROM pglock.exchange(ARRAY['a'], ARRAY[$1::uuid], NULL, NULL,
		ARRAY['a'], ARRAY[$2::uuid], 'next', ARRAY[30000000], NULL, NULL, 0)`, held.id, newID()), "released granted")
	want(t, "the last answer", one[string](c, revoke, id, false), fmt.Sprint("done ", held.token))
	next.commit()
	want(t, "slots with a later token than the holder's", one[int](c, `SELECT count(*) FROM pglock.leases l
		WHERE token > (SELECT token FROM pglock.leases WHERE name = 'a' AND slot = 0)`), 0)

	// Where slot 0 was deleted by hand, the others still get theirs.
	g := c.takeAs("b", reader)
	c.exec(`DELETE FROM pglock.leases WHERE name = 'b' AND slot = 0`)
	c.lapse(g)
	want(t, "without slot 0", one[string](c, `SELECT status FROM pglock.revoke('b', $1, 'operator', 0, true)`, newID()), "done")
	want(t, "its renewal", c.renew(g), "taken")
}

// An operator with psql needs one call. It commits on the way, since the holder is to know at once.
func TestOneCallRevokesToTheEnd(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	g := c.takeWith(ask{name: "a", ttl: 5 * time.Second}) // which no machine that stands still outlasts
	until := one[time.Time](c, `SELECT expires_at FROM pglock.leases WHERE name = 'a'`)
	c.begin()
	if err := c.fails(`CALL pglock.revoke_lock('a')`); sqlState(err) != "2D000" {
		t.Errorf("in a transaction: %v", err)
	}
	c.rollback()
	token := one[int64](c, `CALL pglock.revoke_lock('a')`)
	if now := one[time.Time](c, `SELECT clock_timestamp()`); token <= g.token || now.Before(until) {
		t.Errorf("token %d after %d, at %v, while the lease lasted until %v", token, g.token, now, until)
	}
	want(t, "the holder's renewal", c.renew(g), "taken")
	want(t, "the next", c.try("a"), "granted")
	if err := c.fails(`CALL pglock.revoke_lock('b')`); !strings.Contains(err.Error(), "nobody was ever granted it") {
		t.Errorf("a name that nobody has used: %v", err)
	}
}
