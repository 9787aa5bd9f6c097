package migrations_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// otherServer makes the guard say that another server has granted last: one that differs in its start alone, as a restarted
// server does, unless more is said.
const otherServer = `UPDATE pglock.guard SET started = 'epoch'`

// clockToken is the least token of now.
func (c *caller) clockToken() int64 {
	c.t.Helper()
	return one[int64](c, `SELECT floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint`)
}

func TestFreshInstallationGrantsAtOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	want(t, "hold_us", one[int64](c, `SELECT hold_us FROM pglock.check_in(0)`), 0)
	g := c.take("a")
	if clock := c.clockToken(); g.token > clock || g.token < clock-86_400_000_000 {
		t.Errorf("token %d: tokens begin at the clock of the installation, and now is %d", g.token, clock)
	}
	want(t, "bumps", one[int](c, `SELECT bumps FROM pglock.guard`), 0)
}

// On a server that is not the one that granted last, nothing new is granted until every lease that may have been lost has
// run out. What survived goes on. Tokens jump beyond what may have been lost.
func TestOtherServerHoldsGrantsBack(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	survivor, lapsed, ended := c.take("survivor"), c.take("lapsed"), c.take("ended")
	db.Age(t, "lapsed", time.Minute)
	db.Exec(t, otherServer)
	clock := c.clockToken()

	got := c.acquire(ask{name: "a"})
	if got.status != "held_back" || got.remaining <= 0 || got.remaining > 30*time.Second {
		t.Errorf("%+v, want held_back for the cap", got)
	}
	if !one[bool](c, `SELECT no_grants_before > to_timestamp($1 / 1000000.0) + interval '30 s' - interval '1 ms' FROM pglock.guard`, clock) {
		t.Error("held back for less than the cap from now")
	}
	if last := c.lastToken(); last < clock {
		t.Errorf("the sequence is at %d, behind the clock of %d", last, clock)
	}
	for _, g := range []grant{survivor, lapsed, ended} {
		want(t, "retry of "+g.name, c.again(g).status, "held_back") // not even what looks like its own
	}
	want(t, "renewal of what survived", c.renew(survivor), "renewed")
	want(t, "renewal of what lapsed", c.renew(lapsed), "expired")
	want(t, "release", c.release(ended), "released")
	want(t, "the released name", c.try("ended"), "held_back")

	c.endHold()
	want(t, "the survivor's name", c.try("survivor"), "held")
	for _, name := range []string{"a", "ended", "lapsed"} {
		if g := c.take(name); g.token <= clock {
			t.Errorf("%s: token %d, want above the clock of %d", name, g.token, clock)
		}
	}
	want(t, "bumps", one[int](c, `SELECT bumps FROM pglock.guard`), 1)
}

// A new connection's check-in begins the hold: it need not wait for the first who wants a lock.
func TestCheckInBeginsTheHold(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	db.Exec(t, otherServer)
	if got := one[int64](c, `SELECT hold_us FROM pglock.check_in(0)`); got <= 0 || got > 30_000_000 {
		t.Errorf("hold_us %d, want at most 30 s", got)
	}
	want(t, "cap_us", one[int64](c, `SELECT cap_us FROM pglock.check_in(0)`), 30_000_000)
	want(t, "bumps", one[int](c, `SELECT bumps FROM pglock.guard`), 1)
}

// Many find out at the same time: one bumps, nobody is granted anything and nobody gets an error.
func TestManyFindOutAndOneBumps(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	db.Exec(t, otherServer)
	var all []*caller
	for range 8 {
		all = append(all, newCaller(t, db))
	}
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i, c := range all {
		wg.Go(func() {
			<-start
			want(t, "acquire", c.try(fmt.Sprint("job ", i)), "held_back")
		})
	}
	close(start)
	wg.Wait()
	want(t, "bumps", pgtest.Query[int](t, db, `SELECT bumps FROM pglock.guard`), 1)
}

// Whoever comes while another bumps is told to ask again soon, and waits for nothing. A bump that is rolled back is done again.
func TestBumpInProgressStallsNobody(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	slow, other := newCaller(t, db), newCaller(t, db)
	db.Exec(t, otherServer)
	slow.exec(`BEGIN`)
	want(t, "the one that bumps", slow.try("a"), "held_back")
	got := other.acquire(ask{name: "a"})
	if got.status != "held_back" || got.remaining != 50*time.Millisecond {
		t.Errorf("%+v, want held_back for 50 ms", got)
	}
	slow.exec(`ROLLBACK`)
	want(t, "bumps", one[int](other, `SELECT bumps FROM pglock.guard`), 0)
	want(t, "after the rollback", other.try("a"), "held_back")
	want(t, "bumps", one[int](other, `SELECT bumps FROM pglock.guard`), 1)
}

// A faster clock may have written instants far ahead: a lease is cut to its TTL. What somebody asked for as a hold is not.
func TestBumpCutsLeasesAndNoHolds(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	c.take("ahead")
	c.takeWith(ask{name: "held back", hold: 2 * time.Hour})
	c.takeWith(ask{name: "short", ttl: 20 * time.Second})
	db.Age(t, "ahead", -time.Hour)
	db.Age(t, "short", 5*time.Second)
	before := c.row("held back") + c.row("short")
	db.Exec(t, otherServer)
	want(t, "acquire", c.try("a"), "held_back")
	if !one[bool](c, `SELECT expires_at BETWEEN clock_timestamp() AND clock_timestamp() + ttl FROM pglock.leases WHERE name = 'ahead'`) {
		t.Error("the lease from the future is not cut to its TTL")
	}
	want(t, "the others", c.row("held back")+c.row("short"), before)
}

// No guard, no grants.
func TestNoGuardNoGrants(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	db.Exec(t, `DELETE FROM pglock.guard`)
	for _, sql := range []string{acquireFails, checkInFails} {
		want(t, sql, sqlState(c.fails(sql)), "P0002")
	}
	want(t, "rows", one[int](c, `SELECT count(*) FROM pglock.leases`), 0)
}
