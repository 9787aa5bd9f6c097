package migrations_test

import (
	"strings"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// waitFor asks for what another holds, and is marked with that, which a release may grant if it is plain. It answers what the heir asks
// for again.
func (s sleeper) waitFor(a ask) grant {
	s.t.Helper()
	if a.id == "" {
		a.id = newID()
	}
	if a.ttl == 0 {
		a.ttl = 30 * time.Second
	}
	want(s.t, "the wait for "+a.name, one[string](s.caller, `SELECT status FROM pglock.acquire(ARRAY[$1::text], ARRAY[$2::uuid], $3, ARRAY[$4::bigint],
		ARRAY[$5::bigint], ARRAY[$6::text], 0, ARRAY[$7::bigint], ARRAY[$8::int], NULL, $9::uuid, ARRAY[1::bigint], ARRAY[$10::boolean])`,
		a.name, a.id, a.label, a.ttl.Microseconds(), a.hold.Microseconds(), a.meta, a.delay.Microseconds(), a.kind, s.id,
		a.hold == 0 && a.delay == 0 && a.meta == nil && a.kind == 0), "marked")
	return grant{name: a.name, id: a.id}
}

// markFor is a mark that says what a release may grant, whatever that is.
func (s sleeper) markFor(name, id string, ttl time.Duration) string {
	s.t.Helper()
	return s.markLike(name, id, ttl, false)
}

func (s sleeper) markLike(name, id string, ttl time.Duration, fair bool) string {
	s.t.Helper()
	return one[string](s.caller, `SELECT status FROM pglock.mark(ARRAY[$1::text], $2::uuid, ARRAY[1::bigint], ARRAY[$5::boolean], NULL, ARRAY[$3::uuid], '',
		ARRAY[$4::bigint])`, name, s.id, id, ttl.Microseconds(), fair)
}

// unmark takes back marks, all of wait 1, or only what they would have granted. It answers the places of those that it could not.
func (s sleeper) unmark(names []string, ids []*string) string {
	s.t.Helper()
	return one[string](s.caller, `SELECT coalesce(string_agg(ord::text, ' '), '') FROM pglock.unmark($1::text[], $2::uuid,
		array_fill(1::bigint, ARRAY[cardinality($1::text[])]), $3::text[]::uuid[])`, names, s.id, ids)
}

// deferred releases as clients do: the commit may be lost.
func (c *caller) deferred(g grant) {
	c.t.Helper()
	want(c.t, "release", one[string](c, `SELECT status FROM pglock.release(ARRAY[$1::text], ARRAY[$2::uuid], true) WHERE status <> 'awaited'`, g.name, g.id), "released")
}

// bequest is to whom a name was granted, as what, for how many seconds until it is fetched, and whether anything else is left there.
func (c *caller) bequest(name string) string {
	c.t.Helper()
	return one[string](c, `SELECT concat_ws(' ', acquisition, owner, ttl, round(extract(epoch FROM expires_at - granted_at)),
		CASE WHEN granted_at < clock_timestamp() - interval '1 min' OR not_before > 'epoch' OR delay > '0' OR metadata IS NOT NULL OR revoked IS NOT NULL THEN 'more' END)
		FROM pglock.leases WHERE name = $1`, name)
}

// told is what a notification says of the wait with number 1 for a name that was bequeathed as it is stored.
func (c *caller) told(name string) string {
	c.t.Helper()
	return one[string](c, `SELECT format('1,%s,%s,%s %s', acquisition, token, (extract(epoch FROM granted_at) * 1000000)::bigint, name) FROM pglock.leases WHERE name = $1`, name)
}

// keep lets a bequest last longer than three seconds, since a test may have to wait for its turn.
func (c *caller) keep(names ...string) {
	c.t.Helper()
	c.exec(`UPDATE pglock.leases SET expires_at = granted_at + ttl - interval '1 s' WHERE name = ANY ($1)`, names)
}

func (c *caller) heldBy(name string) string {
	c.t.Helper()
	return one[string](c, `SELECT acquisition::text FROM pglock.leases WHERE name = $1 AND slot = 0`, name)
}

func (c *caller) marks() int {
	c.t.Helper()
	return one[int](c, `SELECT count(*) FROM pglock.waits`)
}

func TestAReleaseGrantsTheLockToWhoeverHasWaitedLongest(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, first, second := newCaller(t, db), newSleeper(t, db), newSleeper(t, db)
	meta := `{"of": "the last one"}`
	g := c.takeWith(ask{name: "a", meta: &meta, delay: time.Hour, hold: time.Microsecond})
	heir := first.waitFor(ask{name: "a", label: "heir", ttl: 20 * time.Second})
	next := second.waitFor(ask{name: "a", label: "next", ttl: 2 * time.Second})

	want(t, "release", c.release(g), "released")

	first.wantNotified("the heir", c.told("a"))
	second.wantNotified("the next")
	want(t, "what is stored", c.bequest("a"), heir.id+" heir 00:00:20 3")
	want(t, "marks that are left", c.marks(), 1)
	want(t, "another's try", c.try("a"), "held")
	want(t, "the same release, sent again", c.release(g), "gone")
	want(t, "the renewal of what was released", c.renew(g), "taken")
	c.keep("a")
	got := first.again(heir)
	heir.token = got.token
	want(t, "the heir", got.status, "granted")
	want(t, "its label", got.owner, "heir")
	if got.remaining > 19*time.Second {
		t.Errorf("%v are left, more than the bequest has", got.remaining)
	}
	if got.token <= g.token {
		t.Errorf("token %d after %d", got.token, g.token)
	}
	first.begin()
	want(t, "the heir, once more", first.again(heir).token, heir.token)
	want(t, "that it has written", one[bool](first.caller, `SELECT pg_current_xact_id_if_assigned() IS NOT NULL`), false)
	first.commit()
	want(t, "renewal", first.renew(heir), "renewed")
	want(t, "release", first.release(heir), "released")
	second.wantNotified("the next", c.told("a"))
	want(t, "what is stored of a short one", c.bequest("a"), next.id+" next 00:00:02 2")
	want(t, "marks that are left", c.marks(), 0)
}

func TestAnExchangeThatComesToNothingGrantsTheLockToAWaiter(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, s := newCaller(t, db), newSleeper(t, db)
	g, within := c.take("a"), newID()
	heir := s.waitFor(ask{name: "a"})
	want(t, "a hand-over", one[string](c, exchangeOne, "a", g.id, within), "released t f, granted f t")
	s.wantNotified("a hand-over")
	want(t, "who has it", c.heldBy("a"), within)

	want(t, "to an id that was used before", one[string](c, exchangeOne, "a", within, within), "released t f, spent f f")

	s.wantNotified("the heir", c.told("a"))
	want(t, "who has it", c.heldBy("a"), heir.id)
	c.keep("a")
	want(t, "the heir", s.again(heir).status, "granted")
}

// Several names are released at once, each to its own heir, and an heir fetches what it was granted beside other names.
func TestAReleaseOfSeveralNamesGrantsEachToItsHeir(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, first, other := newCaller(t, db), newSleeper(t, db), newSleeper(t, db)
	var held []string
	for _, name := range []string{"a", "b", "c", "d"} {
		held = append(held, c.take(name).id)
	}
	a, b := first.waitFor(ask{name: "a"}), other.waitFor(ask{name: "b"})
	want(t, "a mark that says nothing", first.mark(first.id, "c", 1), "marked")

	want(t, "releases", one[string](c, `SELECT string_agg(status, ' ' ORDER BY ord, status DESC) FROM pglock.release(ARRAY['a', 'b', 'c', 'd'], $1::text[]::uuid[])`,
		held), "released released released awaited released")

	want(t, "a", c.heldBy("a"), a.id)
	want(t, "b", c.heldBy("b"), b.id)
	want(t, "c", c.heldBy("c"), held[2])
	if got := strings.Join(first.notified(), "; "); got != c.told("a")+"; 1 c" {
		t.Errorf("the heir of a was told of %q", got)
	}
	other.wantNotified("the heir of b", c.told("b"))
	c.keep("a", "b")
	got := first.acquireBatch(ask{name: "d"}, ask{name: "a", id: a.id}, ask{name: "b"})
	want(t, "what is free", got[0].status, "granted")
	want(t, "what was bequeathed", got[1].status, "granted")
	want(t, "what was bequeathed to another", got[2].status, "held")
}

// Those who wait fairly are granted it in the order of their marks, as those are who do not, and all in one order.
func TestReleasesGrantInTheOrderOfTheMarks(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	g := c.take("a")
	var heirs []grant
	for _, fair := range []bool{true, false, true, true} {
		heir := grant{name: "a", id: newID()}
		want(t, "mark", newSleeper(t, db).markLike("a", heir.id, 20*time.Second, fair), "marked")
		heirs = append(heirs, heir)
	}
	for _, heir := range heirs {
		want(t, "release", c.release(g), "released")
		want(t, "who has it", c.heldBy("a"), heir.id)
		g = heir
	}
}

func TestABequestThatNobodyFetchesRunsOut(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, s := newCaller(t, db), newSleeper(t, db)
	g := c.take("a")
	heir := s.waitFor(ask{name: "a"})
	want(t, "release", c.release(g), "released")
	bequeathed := one[int64](c, `SELECT token FROM pglock.leases`)
	c.lapse(heir) // three seconds later
	want(t, "the heir, too late", s.again(heir).status, "spent")
	if next := c.take("a"); next.token <= bequeathed {
		t.Errorf("token %d after %d", next.token, bequeathed)
	}
}

// What a release cannot grant by the rules of acquire, or without what only acquire can give it, wakes its waiter as it always did.
func TestWhatIsNotBequeathedIsWoken(t *testing.T) {
	t.Parallel()
	meta, nothing := `{}`, func() {}
	as := func(change func(*ask)) func(*pgtest.Database, *caller, sleeper, *grant) func() {
		return func(_ *pgtest.Database, _ *caller, s sleeper, _ *grant) func() {
			a := ask{name: "a"}
			change(&a)
			s.waitFor(a)
			return nothing
		}
	}
	// Each waits, and does what stands against a bequest; the function that it returns undoes that.
	cases := map[string]func(db *pgtest.Database, c *caller, s sleeper, g *grant) func(){
		"a mark that does not say what to grant": func(_ *pgtest.Database, c *caller, s sleeper, _ *grant) func() {
			want(c.t, "mark", s.mark(s.id, "a", 1), "marked")
			return nothing
		},
		"to be held at least": as(func(a *ask) { a.hold = time.Microsecond }),
		"with a delay":        as(func(a *ask) { a.delay = time.Microsecond }),
		"with metadata":       as(func(a *ask) { a.meta = &meta }),
		"a reader":            as(func(a *ask) { a.kind = reader }),
		"after readers": func(_ *pgtest.Database, c *caller, s sleeper, g *grant) func() {
			c.release(*g)
			*g = c.takeAs("a", reader)
			s.waitFor(ask{name: "a"})
			return nothing
		},
		"a transaction that is tied to the grant before": func(db *pgtest.Database, c *caller, s sleeper, _ *grant) func() {
			s.waitFor(ask{name: "a"})
			return lock(c.t, db, "a", "KEY SHARE")
		},
		"while grants are held back": func(_ *pgtest.Database, c *caller, s sleeper, _ *grant) func() {
			s.waitFor(ask{name: "a"})
			c.exec(`UPDATE pglock.guard SET no_grants_before = clock_timestamp() + interval '1 min'`)
			return c.endHold
		},
		"on another server": func(_ *pgtest.Database, c *caller, s sleeper, _ *grant) func() {
			s.waitFor(ask{name: "a"})
			c.exec(otherServer)
			return nothing
		},
		"for longer than the cap": func(_ *pgtest.Database, c *caller, s sleeper, _ *grant) func() {
			want(c.t, "mark", s.markFor("a", newID(), time.Hour), "marked")
			return nothing
		},
		"for less than any lease": func(_ *pgtest.Database, c *caller, s sleeper, _ *grant) func() {
			want(c.t, "mark", s.markFor("a", newID(), 99*time.Millisecond), "marked")
			return nothing
		},
		"while the name is kept": func(_ *pgtest.Database, c *caller, s sleeper, g *grant) func() {
			c.release(*g)
			*g = c.takeWith(ask{name: "a", hold: time.Hour})
			s.waitFor(ask{name: "a"})
			return nothing
		},
		"behind a fair one that is busy": func(db *pgtest.Database, c *caller, s sleeper, _ *grant) func() {
			older, busy := newSleeper(c.t, db), newCaller(c.t, db)
			older.queue(older.id, "a", 1)
			s.waitFor(ask{name: "a"})
			busy.begin()
			busy.exec(`SELECT FROM pglock.waits WHERE client = $1 FOR UPDATE`, older.id)
			return busy.rollback
		},
		"what was granted before": func(_ *pgtest.Database, c *caller, s sleeper, g *grant) func() {
			s.waitFor(ask{name: "a"})
			c.exec(`UPDATE pglock.waits SET acquisition = $1`, g.id)
			return nothing
		},
		"what was revoked": func(_ *pgtest.Database, c *caller, s sleeper, g *grant) func() {
			s.waitFor(ask{name: "a"})
			c.exec(`UPDATE pglock.waits SET acquisition = $1`, g.id)
			g.id = newID()
			c.exec(`SELECT pglock.revoke('a', $1, 'operator', 0, true)`, g.id)
			return nothing
		},
	}
	for name, wait := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.DB(t)
			c, s := newCaller(t, db), newSleeper(t, db)
			g := c.take("a")
			undo := wait(db, c, s, &g)
			marks := c.marks()
			want(t, "release", c.release(g), "released")
			s.wantNotified("the waiter", "1 a")
			want(t, "the row", one[string](c, `SELECT concat_ws(' ', acquisition, token, expires_at = 'epoch') FROM pglock.leases WHERE slot = $1`, g.slot),
				grantText(c, g))
			want(t, "marks", c.marks(), marks)
			undo()
		})
	}
}

// grantText is what stays of a grant that was released.
func grantText(c *caller, g grant) string {
	c.t.Helper()
	return one[string](c, `SELECT concat_ws(' ', $1::uuid, $2::bigint, true)`, g.id, g.token)
}

// Whoever takes back a mark wakes the next one, which is not durable: it grants nothing.
func TestOnlyAReleaseGrantsToAWaiter(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, first, second := newCaller(t, db), newSleeper(t, db), newSleeper(t, db)
	g := c.take("a")
	first.waitFor(ask{name: "a"})
	second.waitFor(ask{name: "a"})
	unlock := lock(t, db, "a", "KEY SHARE")
	want(t, "release", c.release(g), "released")
	first.wantNotified("the first", "1 a")
	unlock()
	want(t, "what the first cannot take back", first.unmark([]string{"a"}, nil), "")
	second.wantNotified("the second", "1 a")
	want(t, "who had it last", c.heldBy("a"), g.id)
	want(t, "the next", c.try("a"), "granted")
}

// The release that grants a lock is as durable as a grant, though a release may be lost.
func TestABequestIsDurable(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, s := newCaller(t, db), newSleeper(t, db)
	for session, wanted := range map[string]string{"off": "local", "local": "local", "on": "on", "remote_write": "remote_write", "remote_apply": "remote_apply"} {
		for how, release := range map[string]func(grant){
			"deferred":     c.deferred,
			"not deferred": func(g grant) { want(t, "release", c.release(g), "released") },
			"of several": func(g grant) {
				c.exec(`SELECT pglock.release(ARRAY['none', $1], ARRAY[$2, $2]::uuid[], true)`, g.name, g.id)
			},
			"by exchange": func(g grant) { one[string](c, exchangeOne, g.name, g.id, g.id) },
		} {
			g := c.take(how + session)
			heir := s.waitFor(ask{name: g.name})
			want(t, "a release, "+how+", under "+session, c.commitAfter(session, func() { release(g) }), wanted)
			want(t, "who has "+g.name, c.heldBy(g.name), heir.id)
		}
		g := c.take("b " + session)
		want(t, "without an heir, under "+session, c.commitAfter(session, func() { c.deferred(g) }), "off")
		g = c.take("c " + session)
		s.waitFor(ask{name: g.name, hold: time.Microsecond})
		want(t, "with one that is only woken, under "+session, c.commitAfter(session, func() { c.deferred(g) }), "off")
	}
}

// A mark that is not there, or that another transaction has in its hands, may have been granted what it asks for.
func TestUnmarkSaysWhatMayHaveBeenGranted(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, s, busy := newCaller(t, db), newSleeper(t, db), newCaller(t, db)
	names := []string{"there", "none", "busy", "of another wait"}
	for _, name := range names {
		c.take(name)
		if name != "none" {
			s.waitFor(ask{name: name})
		}
	}
	c.exec(`UPDATE pglock.waits SET wait = 2 WHERE name = 'of another wait'`)
	busy.begin()
	busy.exec(`SELECT FROM pglock.waits WHERE name = 'busy' FOR UPDATE`)

	want(t, "those that were not taken back", s.unmark(names, nil), "2 3 4")

	busy.rollback()
	want(t, "the marks that are left", one[string](c, `SELECT string_agg(name, ', ' ORDER BY name) FROM pglock.waits`), "busy, of another wait")
}

// Whoever of a process leaves takes back what a release would have granted it, and the mark stays to the others of the process.
func TestUnmarkOfAnAcquisitionLeavesTheMark(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, s, busy := newCaller(t, db), newSleeper(t, db), newCaller(t, db)
	names := []string{"there", "none", "busy", "of another"}
	held, heirs := map[string]grant{}, map[string]grant{}
	var ids []*string
	for _, name := range names {
		held[name] = c.take(name)
		heir := grant{name: name, id: newID()}
		if name != "none" {
			heir = s.waitFor(ask{name: name})
		}
		heirs[name] = heir
		ids = append(ids, &heir.id)
	}
	another := newID()
	ids[3] = &another
	busy.begin()
	busy.exec(`SELECT FROM pglock.waits WHERE name = 'busy' FOR UPDATE`)

	want(t, "those that were not taken back", s.unmark(names, ids), "2 3 4")

	busy.rollback()
	want(t, "marks", c.marks(), 3)
	want(t, "marks that grant nothing", one[string](c, `SELECT string_agg(name, ', ') FROM pglock.waits WHERE acquisition IS NULL`), "there")
	for name, heir := range map[string]string{"there": held["there"].id, "busy": heirs["busy"].id, "of another": heirs["of another"].id} {
		want(t, "release", c.release(held[name]), "released")
		if name == "there" {
			s.wantNotified(name, "1 "+name)
		} else {
			s.wantNotified(name, c.told(name))
		}
		want(t, "who has "+name, c.heldBy(name), heir)
	}
}

// What is held by the very acquisition is to be asked for, and not waited for.
func TestAMarkForWhatHasBeenGrantedSaysToAsk(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, s := newCaller(t, db), newSleeper(t, db)
	g := c.take("a")
	heir := s.waitFor(ask{name: "a"})
	want(t, "before", s.markFor("a", heir.id, time.Second), "marked")
	c.release(g)
	want(t, "afterwards", s.markFor("a", heir.id, time.Second), "retry")
	want(t, "marks", c.marks(), 0)
	c.keep("a")
	want(t, "the heir", s.again(heir).status, "granted")
	want(t, "while it is held", s.markFor("a", heir.id, time.Second), "retry")
	want(t, "marks", c.marks(), 0)
	want(t, "for another acquisition", s.markFor("a", newID(), time.Second), "marked")
}

// Of two that wait in one process, the one that marked last is the heir.
func TestAMarkGrantsWhatItSaidLast(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, s := newCaller(t, db), newSleeper(t, db)
	g := c.take("a")
	s.waitFor(ask{name: "a"})
	last := s.waitFor(ask{name: "a", label: "last", ttl: 10 * time.Second})
	c.release(g)
	want(t, "what is stored", c.bequest("a"), last.id+" last 00:00:10 3")
}

func TestABequestDoesNotObeyALaggingSequence(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, s := newCaller(t, db), newSleeper(t, db)
	g := c.take("a")
	heir := s.waitFor(ask{name: "a"})
	db.Exec(t, `SELECT setval('pglock.fencing_token', 5)`)
	want(t, "release", c.release(g), "released")
	s.wantNotified("the heir", c.told("a"))
	c.keep("a")
	got := s.again(heir)
	want(t, "the heir", got.status, "granted")
	if got.token <= g.token {
		t.Errorf("token %d after %d", got.token, g.token)
	}
	want(t, "renewal with the token that was told", s.renew(grant{name: "a", id: heir.id, token: got.token}), "renewed")
	if next := c.take("b"); next.token <= got.token {
		t.Errorf("token %d after %d: the sequence was not moved", next.token, got.token)
	}
}

// A waiter gives up while a release is granting it the lock, and that has not committed. It must hear that its mark was not taken
// back: only then does it end the grant that it never wanted.
func TestGivingUpMeetsABequestOnItsWay(t *testing.T) {
	t.Parallel()
	for name, acquisition := range map[string]bool{"alone": false, "others of the process stay": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.DB(t)
			c, s := newCaller(t, db), newSleeper(t, db)
			g := c.take("a")
			heir := s.waitFor(ask{name: "a"})
			ids := []*string{nil}
			if acquisition {
				ids = []*string{&heir.id}
			}
			c.begin()
			want(t, "release", c.release(g), "released")
			want(t, "what is not taken back beside it", s.unmark([]string{"a"}, ids), "1")
			c.rollback()
			want(t, "what is not taken back after it came to nothing", s.unmark([]string{"a"}, ids), "")

			s.waitFor(ask{name: "a", id: heir.id})
			c.begin()
			want(t, "release", c.release(g), "released")
			want(t, "what is not taken back beside it", s.unmark([]string{"a"}, ids), "1")
			want(t, "the end of what is not granted yet", s.release(heir), "gone")
			c.commit()
			want(t, "what is not taken back after it", s.unmark([]string{"a"}, ids), "1")
			want(t, "the end of it", s.release(heir), "released")
			want(t, "the next", c.try("a"), "granted")
		})
	}
}

// A waiter gives up between a release's look at its mark and the lock on it. Its mark is taken back, so nobody ends what it might have
// been granted: it must be granted nothing. The mark is that of others in its process, who are woken.
func TestGivingUpJustBeforeABequestLeavesNothingGranted(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	hookInto(t, db, place{"pglock.wake", "EXIT WHEN EXISTS (SELECT FROM pglock.obstacle", "PERFORM public.stall(); EXIT WHEN EXISTS (SELECT FROM pglock.obstacle"})
	c, s := newCaller(t, db), newSleeper(t, db)
	g := c.take("a")
	heir := s.waitFor(ask{name: "a"})
	resume := stalled(t, db, c, func() string { return c.release(g) })
	want(t, "what is not taken back", s.unmark([]string{"a"}, []*string{&heir.id}), "")

	want(t, "release", resume(), "released")

	if c.heldBy("a") == heir.id {
		t.Error("the lock is granted to one who gave up, and was told that it would not be")
	}
	s.wantNotified("the others of its process", "1 a")
	want(t, "another's try", c.try("a"), "granted")
}

// Nobody's label is none: a mark that is made by hand must not be in the way of a release.
func TestAMarkWithoutALabelDoesNotMakeAReleaseFail(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, s := newCaller(t, db), newSleeper(t, db)
	g := c.take("a")
	id := newID()
	want(t, "the mark", one[string](s.caller, `SELECT status FROM pglock.mark(ARRAY['a'], $1::uuid, ARRAY[1::bigint], ARRAY[false], NULL, ARRAY[$2::uuid], NULL,
		ARRAY[30000000::bigint])`, s.id, id), "marked")

	want(t, "release", c.release(g), "released")

	want(t, "who has it", c.heldBy("a"), id)
}

// A process that hands a lock on within itself has the row locked nearly always. Whoever asks meanwhile is marked, so that it is known
// to wait; but who has the row may not see that, so it asks again, until it was marked while nobody had it.
func TestAMarkIsMadeWhileItIsHandedOn(t *testing.T) {
	t.Parallel()
	for what, acquisition := range map[string]string{"a release may grant it": "$1::uuid", "it is only woken": "NULL::uuid"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			markWhileItIsHandedOn(t, acquisition)
		})
	}
}

func markWhileItIsHandedOn(t *testing.T, acquisition string) {
	db := pgtest.DB(t)
	c, s := newCaller(t, db), newSleeper(t, db)
	c.take("a")
	mark := func() string {
		return one[string](s.caller, `SELECT concat_ws(' ', status, remaining_us > 0) FROM pglock.mark(ARRAY['a'], $1::uuid, ARRAY[1::bigint], ARRAY[false], NULL,
			ARRAY[`+acquisition+`], NULL, ARRAY[30000000::bigint])`, s.id)
	}
	const left = `SELECT until > clock_timestamp() + interval '30 s' FROM pglock.waits`
	unlock := lock(t, db, "a", "UPDATE")
	want(t, "while the row is locked", mark(), "marked f")
	want(t, "it is there for long", one[bool](c, left), false)
	want(t, "while it is locked still", mark(), "retry f")
	want(t, "marks", c.marks(), 1)
	unlock()
	want(t, "afterwards", mark(), "marked t")
	want(t, "it is there for long", one[bool](c, left), true)

	c.exec(`DELETE FROM pglock.waits; UPDATE pglock.leases SET expires_at = 'epoch'`)
	unlock = lock(t, db, "a", "UPDATE")
	want(t, "while a lock that is free is granted", mark(), "retry f")
	want(t, "marks", c.marks(), 0)
	unlock()
}
