package migrations_test

import (
	"context"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// A sleeper is a process that waits: its id, and a session that listens for it.
type sleeper struct {
	*caller
	id string
}

func newSleeper(t *testing.T, db *pgtest.Database) sleeper {
	t.Helper()
	s := sleeper{newCaller(t, db), newID()}
	s.exec(`LISTEN "pglock_` + s.id + `"`)
	return s
}

func (c *caller) mark(client, name string, wait int64) string {
	c.t.Helper()
	return one[string](c, `SELECT status FROM pglock.mark(ARRAY[$1::text], $2::uuid, ARRAY[$3::bigint], ARRAY[false])`, name, client, wait)
}

// queue marks a wait fairly, and answers how long whoever is before it may take as well.
func (c *caller) queue(client, name string, wait int64) (status string, remaining time.Duration) {
	c.t.Helper()
	var us int64
	err := c.conn.QueryRow(c.t.Context(), `SELECT status, remaining_us FROM pglock.mark(ARRAY[$1::text], $2::uuid, ARRAY[$3::bigint], ARRAY[true])`,
		name, client, wait).Scan(&status, &us)
	if err != nil {
		c.t.Error(err)
	}
	return status, time.Duration(us) * time.Microsecond
}

// notified is what the sleeper was told of so far. A notification arrives before the answer to a statement that began later.
func (s sleeper) notified() (payloads []string) {
	s.t.Helper()
	s.exec(`SELECT 1`)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for {
		n, err := s.conn.WaitForNotification(ended)
		if err != nil {
			return payloads
		}
		payloads = append(payloads, n.Payload)
	}
}

func (s sleeper) wantNotified(what string, wanted ...string) {
	s.t.Helper()
	got := s.notified()
	if len(got) != len(wanted) || len(got) == 1 && got[0] != wanted[0] {
		s.t.Errorf("%s: notified %q, want %q", what, got, wanted)
	}
}

func TestAReleaseWakesTheOldestWaiterAndNoOther(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, first, second := newCaller(t, db), newSleeper(t, db), newSleeper(t, db)
	g, other := c.take("a"), c.take("b")
	want(t, "the first mark", first.mark(first.id, "a", 7), "marked")
	want(t, "the second mark", second.mark(second.id, "a", 8), "marked")

	want(t, "release of another name", c.release(other), "released")
	first.wantNotified("after the release of another name")
	want(t, "release", c.release(g), "released")
	first.wantNotified("the first", "7 a")
	second.wantNotified("the second")
	g = c.take("a")
	want(t, "the next release", c.release(g), "released")
	first.wantNotified("the first, of the next release")
	second.wantNotified("the second, of the next release", "8 a")
	c.take("a")
	want(t, "the first mark, anew", first.mark(first.id, "a", 7), "marked")
	want(t, "the second mark, anew", second.mark(second.id, "a", 8), "marked")
}

// Whoever was woken and found that another was faster keeps its turn. A grant ends it.
func TestWhoeverIsWokenInVainKeepsItsTurn(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, first, second := newCaller(t, db), newSleeper(t, db), newSleeper(t, db)
	asking := func(s sleeper, wait int64) string {
		t.Helper()
		return one[string](s.caller, `SELECT status FROM pglock.acquire(ARRAY['a'], ARRAY[gen_random_uuid()], '', ARRAY[30000000::bigint],
			client => $1, waits => ARRAY[$2::bigint], holds_us => ARRAY[1::bigint])`, s.id, wait) // so that no release bequeaths it
	}
	g := c.take("a")
	want(t, "the first", asking(first, 1), "marked")
	want(t, "the second", asking(second, 2), "marked")
	for range 3 {
		want(t, "release", c.release(g), "released")
		first.wantNotified("the first", "1 a")
		g = c.take("a") // it is faster
		want(t, "the first, beaten", asking(first, 1), "marked")
	}
	want(t, "release", c.release(g), "released")
	first.wantNotified("the first", "1 a")
	unlock := lock(t, db, "a", "UPDATE") // just now
	want(t, "the first, beside another", asking(first, 1), "retry")
	unlock()
	g = c.take("a")
	want(t, "release", c.release(g), "released")
	first.wantNotified("the first, once more", "1 a")
	second.wantNotified("the second")
	want(t, "the first, at last", asking(first, 1), "granted")
	want(t, "marks left", one[int](c, `SELECT count(*) FROM pglock.waits`), 1)
}

func TestAMarkOfAFreeOrBusyRowAsksToTryAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	want(t, "a name that nobody ever used", c.mark(newID(), "none", 1), "retry")
	g := c.take("a")
	for _, strength := range []string{"UPDATE", "NO KEY UPDATE"} {
		unlock := lock(t, db, "a", strength)
		want(t, "while the row is locked for "+strength, c.mark(newID(), "a", 1), "retry")
		unlock()
	}
	unlock := lock(t, db, "a", "KEY SHARE") // a transaction that is protected by the lease
	want(t, "beside a held transaction", c.mark(newID(), "a", 1), "marked")
	unlock()
	c.release(g)
	want(t, "free", c.mark(newID(), "a", 1), "retry")
}

// A mark tells a name that is only kept from one that is held, when it is made and when it is looked at.
func TestAMarkTellsWhatIsKeptFromWhatIsHeld(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	for name, x := range map[string]struct{ held, wanted int }{"a": {alone, alone}, "read": {reader, alone}, "one of one": {1, 1}} {
		g, id, wanted := c.takeWith(ask{name: name, kind: x.held, hold: time.Hour}), newID(), x.wanted
		for _, how := range []string{"made", "looked at"} {
			want(t, name+", held, "+how, c.markAs(id, name, 1, wanted), "marked")
		}
		want(t, name+", released", c.release(g), "released")
		want(t, name+", woken", c.markAs(id, name, 1, wanted), "marked_kept")
		for _, how := range []string{"made", "looked at"} {
			want(t, name+", kept, "+how, c.markAs(id, name, 2, wanted), "marked_kept")
		}
	}
}

// A release that has not committed shows the mark a held row, and may have looked for marks before: it must be met.
func TestAReleaseOnItsWayIsMetByTheMark(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, s := newCaller(t, db), newSleeper(t, db)
	g := c.take("a")
	c.exec(`BEGIN`)
	want(t, "release", c.release(g), "released")

	want(t, "a mark before it has committed", s.mark(s.id, "a", 1), "retry")

	c.exec(`COMMIT`)
	want(t, "another try", s.try("a"), "granted")
}

// A mark that has not committed is seen by no release, so no release may pass it by.
func TestAMarkOnItsWayIsMetByTheRelease(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, s := newCaller(t, db), newSleeper(t, db)
	g := c.take("a")
	marking := newCaller(t, db)
	marking.exec(`BEGIN`)
	want(t, "mark", marking.mark(s.id, "a", 3), "marked")

	want(t, "a release before it has committed", c.release(g), "locked")

	marking.exec(`COMMIT`)
	want(t, "the release, sent again", c.release(g), "released")
	s.wantNotified("the mark", "3 a")
}

func TestAWaiterThatDiedIsPassedOver(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, dead, alive := newCaller(t, db), newSleeper(t, db), newSleeper(t, db)
	g := c.take("a")
	dead.mark(dead.id, "a", 1)
	alive.mark(alive.id, "a", 2)
	c.exec(`UPDATE pglock.waits SET until = clock_timestamp() WHERE client = $1`, dead.id) // a minute later
	want(t, "release", c.release(g), "released")
	dead.wantNotified("the dead one")
	alive.wantNotified("the other", "2 a")
	c.exec(`SELECT pglock.unmark(ARRAY['a'], $1, ARRAY[9])`, newID())
	want(t, "marks left", one[int](c, `SELECT count(*) FROM pglock.waits`), 1)
}

// A waiter gives up at the moment at which it is woken: the wake-up goes to the next.
func TestAMarkThatWasTakenIsPassedOnByWhoeverTakesItBack(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, first, second := newCaller(t, db), newSleeper(t, db), newSleeper(t, db)
	unmark := func(s sleeper, wait int64) {
		t.Helper()
		s.exec(`SELECT pglock.unmark(ARRAY['a'], $1, ARRAY[$2::bigint])`, s.id, wait)
	}
	g := c.take("a")
	first.mark(first.id, "a", 1)
	second.mark(second.id, "a", 2)
	unmark(second, 1) // of an earlier wait: this one stays
	want(t, "marks", one[int](c, `SELECT count(*) FROM pglock.waits`), 2)
	first.wantNotified("while it is held")
	want(t, "release", c.release(g), "released")
	first.wantNotified("the first", "1 a")

	unmark(first, 1)

	second.wantNotified("the second", "2 a")
}

func TestWakingForAHeldLockWakesNobody(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, s := newCaller(t, db), newSleeper(t, db)
	c.take("a")
	s.mark(s.id, "a", 1)
	c.exec(`SELECT pglock.wake(ARRAY['a'])`)
	s.wantNotified("while it is held")
	db.Age(t, "a", time.Minute)
	c.exec(`SELECT pglock.wake(ARRAY['a'])`)
	s.wantNotified("once it is over", "1 a")
}

const exchangeOne = `SELECT string_agg(concat_ws(' ', status, ended, awaited), ', ') FROM pglock.exchange(
	ARRAY[$1::text], ARRAY[$2::uuid], NULL, NULL, ARRAY[$1::text], ARRAY[$3::uuid], '', ARRAY[30000000::bigint], NULL, NULL, 0)`

// A hand-over is one grant after the other in one commit. It wakes nobody, and says that somebody waits.
func TestAnExchangeHandsOverAndWakesOnlyForWhatIsFreeAfterwards(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, s := newCaller(t, db), newSleeper(t, db)
	g := c.take("a")
	next := grant{name: "a", id: newID()}
	want(t, "with nobody else", one[string](c, exchangeOne, "a", g.id, next.id), "released t f, granted f f")
	got := c.again(next)
	if got.status != "granted" || got.token <= g.token {
		t.Errorf("handed over: %+v after token %d", got, g.token)
	}
	s.mark(s.id, "a", 4)
	last := grant{name: "a", id: newID()}
	want(t, "while another waits", one[string](c, exchangeOne, "a", next.id, last.id), "released t f, granted f t")
	s.wantNotified("a hand-over")
	want(t, "of what is not held", one[string](c, exchangeOne, "a", next.id, newID()), "gone t f, held f f")
	s.wantNotified("a hand-over of what is not held")
	want(t, "to an id that was used before", one[string](c, exchangeOne, "a", last.id, last.id), "released t f, spent f f")
	s.wantNotified("a hand-over that came to nothing", "4 a")
}

// Where nobody waits, a release does not come near NOTIFY, which would make its commit queue up behind those of others.
func TestAReleaseThatNobodyWaitsForNotifiesNobody(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	db.Exec(t, `CREATE OR REPLACE FUNCTION pglock.wake(names text[], durability text DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'wake'; END $$`)
	g := c.take("a")
	c.take("another")
	want(t, "the mark of another name", c.mark(newID(), "another", 1), "marked")
	want(t, "release", c.release(g), "released")
	g = c.take("a")
	c.mark(newID(), "a", 1)
	if err := c.fails(`SELECT status FROM pglock.release(ARRAY['a'], ARRAY[$1::uuid])`, g.id); err == nil {
		t.Error("a release that somebody waits for wakes nobody: nothing was observed")
	}
}

func TestFairWaitersAreServedInTheOrderOfTheirMarks(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, first, second, late := newCaller(t, db), newSleeper(t, db), newSleeper(t, db), newSleeper(t, db)
	place := func(s sleeper, wanted string) {
		t.Helper()
		status, _ := s.queue(s.id, "a", 1)
		want(t, "the place in the line", status, wanted)
	}
	g := c.take("a")
	place(first, "marked")
	place(second, "marked")
	place(first, "marked") // looking again loses nothing
	want(t, "release", c.release(g), "released")
	first.wantNotified("the first", "1 a")
	second.wantNotified("the second")
	place(second, "queued")
	place(late, "queued")
	place(first, "retry")
	g = c.take("a") // somebody who is not fair comes between
	place(second, "marked")
	place(first, "marked")
	want(t, "release", c.release(g), "released")
	first.wantNotified("the first, again", "1 a")
	place(second, "queued")
	g = first.take("a")
	first.exec(`SELECT pglock.unmark(ARRAY['a'], $1, ARRAY[1])`, first.id)
	place(first, "marked") // its next wait is at the end of the line
	want(t, "release", c.release(g), "released")
	second.wantNotified("the second", "1 a")
	place(late, "queued")
	place(first, "queued")
	place(second, "retry")
	second.exec(`SELECT pglock.unmark(ARRAY['a'], $1, ARRAY[1])`, second.id) // it gives up
	late.wantNotified("the next", "1 a")
	place(late, "retry")
	place(first, "queued")
}

// The first in the line has died. Who asks next wakes it, and three seconds later it is passed over.
func TestADeadWaiterHoldsUpTheLineForThreeSeconds(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, dead, alive := newCaller(t, db), newSleeper(t, db), newSleeper(t, db)
	c.take("a")
	dead.queue(dead.id, "a", 1)
	alive.queue(alive.id, "a", 2)
	db.Age(t, "a", time.Minute) // nobody releases it

	status, remaining := alive.queue(alive.id, "a", 2)

	want(t, "behind the dead one", status, "queued")
	if remaining <= 0 || remaining > 3*time.Second {
		t.Errorf("it may take %v, want 3 s at most", remaining)
	}
	dead.wantNotified("the dead one", "1 a")
	again, _ := alive.queue(alive.id, "a", 2)
	want(t, "a moment later", again, "queued")
	dead.wantNotified("the dead one, once more")
	c.exec(`UPDATE pglock.waits SET until = until - interval '3 s' WHERE client = $1`, dead.id)
	status, _ = alive.queue(alive.id, "a", 2)
	want(t, "three seconds later", status, "retry")
}

// Looking at a place in the line writes nothing, so that waiters who must poll cost no more than reads.
func TestLookingAtAPlaceInTheLineWritesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, s := newCaller(t, db), newSleeper(t, db)
	c.take("a")
	s.queue(s.id, "a", 1)
	for range 10 {
		s.exec(`BEGIN`)
		s.queue(s.id, "a", 1)
		if one[bool](s.caller, `SELECT pg_current_xact_id_if_assigned() IS NOT NULL`) {
			t.Error("a look at a place has written")
		}
		s.exec(`COMMIT`)
	}
}
