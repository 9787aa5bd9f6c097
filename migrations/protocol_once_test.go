package migrations_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// What the lock of the job "a" is called at the epoch.
const onceLock = "fencedlock.once/1970-01-01T00:00:00.000000Z/a"

func (c *caller) onceStart(token int64, again bool) string {
	c.t.Helper()
	return one[string](c, `SELECT pglock.once_start('a', 0, $1, $2)`, token, again)
}

func (c *caller) onceEnd(token int64, how string) string {
	c.t.Helper()
	return one[string](c, `SELECT verdict FROM pglock.once_end('a', 0, $1, $2, '')`, token, how)
}

// onceRow is what is stored of it.
func (c *caller) onceRow() string {
	c.t.Helper()
	return one[string](c, `SELECT coalesce((SELECT o::text FROM pglock.occurrences o), '')`)
}

// Only the grant that holds the occurrence's own lock begins it.
func TestAnOccurrenceIsBegunByTheHolderOfItsLock(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	other := c.take("a")
	want(t, "a lock that is in another database", c.onceStart(other.token, true), "elsewhere")
	g := c.take(onceLock)
	for what, token := range map[string]int64{"another lock's": other.token, "a later": g.token + 1, "no": 0} {
		want(t, what+" token", c.onceStart(token, true), "lost")
	}
	db.Age(t, onceLock, time.Minute)
	want(t, "a lease that is over", c.onceStart(g.token, true), "lost")
	want(t, "on record", c.onceRow(), "")
	g = c.take(onceLock)
	want(t, "its holder", c.onceStart(g.token, false), "started")
	c.release(g)
	want(t, "after its release", c.onceStart(g.token, true), "lost")
}

// A later grant waits for whoever begins, or is seen by it: what one has begun on a lease that lives is there before the next looks.
func TestNoGrantComesBetweenTheLookAtTheLeaseAndTheRecord(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, rival := newCaller(t, db), newCaller(t, db)
	g := c.take(onceLock)
	c.exec(`BEGIN`)
	want(t, "begin", c.onceStart(g.token, false), "started")
	db.Age(t, onceLock, time.Minute)
	want(t, "a rival, meanwhile", rival.try(onceLock), "retry")
	c.exec(`COMMIT`)
	next := rival.take(onceLock)
	want(t, "the rival begins", rival.onceStart(next.token, false), "over")
}

// The life of a record, call by call: each is repeated, and what came later is never changed.
func TestARecordIsWrittenByItsLatestAttemptAlone(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	first := c.take(onceLock)
	want(t, "begin", c.onceStart(first.token, false), "started")
	before := c.onceRow()
	want(t, "begin again, after a lost reply", c.onceStart(first.token, true), "started")
	want(t, "on record", c.onceRow(), before)
	db.Age(t, onceLock, time.Minute)
	outcome := func() string { return one[string](c, `SELECT outcome FROM pglock.once`) }
	want(t, "when its lease is over", outcome(), "unfinished")
	second := c.take(onceLock)
	want(t, "while another has the lock", outcome(), "unfinished")
	want(t, "another, without a retry", c.onceStart(second.token, false), "over")
	want(t, "on record", c.onceRow(), before)
	want(t, "another, with one", c.onceStart(second.token, true), "started")
	want(t, "when another has begun", outcome(), "running")
	before = c.onceRow()
	for _, how := range []string{"done", "failed"} {
		want(t, "the first ends, "+how, c.onceEnd(first.token, how), "stale")
	}
	want(t, "on record", c.onceRow(), before)
	want(t, "the second fails", c.onceEnd(second.token, "failed"), "failed")
	before = c.onceRow()
	want(t, "the second fails, and its reply is lost", c.onceEnd(second.token, "failed"), "failed")
	want(t, "the second changes its mind", c.onceEnd(second.token, "done"), "failed")
	want(t, "the second begins again", c.onceStart(second.token, true), "over")
	want(t, "on record", c.onceRow(), before)
	c.release(second)
	third := c.take(onceLock)
	want(t, "a third", c.onceStart(third.token, true), "started")
	want(t, "the third is done", c.onceEnd(third.token, "done"), "done")
	before = c.onceRow()
	c.release(third)
	fourth := c.take(onceLock)
	want(t, "a fourth, with a retry", c.onceStart(fourth.token, true), "over")
	want(t, "on record", c.onceRow(), before)
	want(t, "the end of what is not there", one[string](c, `SELECT verdict FROM pglock.once_end('b', 0, 1, 'done', '')`), "gone")
	for _, bad := range []string{
		`once_start('', 0, 1, false)`, `once_start(repeat('x', 201), 0, 1, false)`, `once_start('a', 253402300800000000, 1, false)`,
		`once_start('a', NULL, 1, false)`, `once_end('a', 0, 1, 'running', '')`, `once_end('a', 0, 1, 'done', NULL)`,
	} {
		if got := sqlState(c.fails(`SELECT pglock.` + bad)); got != "22023" {
			t.Errorf("%s: SQLSTATE %q, want 22023", bad, got)
		}
	}
}

// A late failure waits for a commit that is under way, and is told that it was a success.
func TestTheEndWaitsForTheTransactionThatEndsIt(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"COMMIT", "ROLLBACK"} {
		db := pgtest.DB(t)
		c, writer := newCaller(t, db), newCaller(t, db)
		g := c.take(onceLock)
		want(t, "begin", c.onceStart(g.token, false), "started")
		writer.exec(`BEGIN`)
		want(t, "done, in a transaction", writer.onceEnd(g.token, "done"), "done")
		told := make(chan string, 1)
		go func() { told <- c.onceEnd(g.token, "failed") }()
		db.WaitFor(t, pgtest.Waiting)
		writer.exec(end)
		want(t, "failed, after "+end, <-told, map[string]string{"COMMIT": "done", "ROLLBACK": "failed"}[end])
	}
}

// What is forgotten takes its lock along, and tokens rise all the same: not even a sequence that lags behind repeats one.
func TestForgettingOccurrencesKeepsTokensRising(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	g := c.take(onceLock)
	want(t, "begin", c.onceStart(g.token, false), "started")
	want(t, "end", c.onceEnd(g.token, "done"), "done")
	c.release(g)
	prune := func() int { return one[int](c, `SELECT pglock.once_prune('0', 10)`) }
	want(t, "forgotten, younger than the cap", prune(), 0)
	db.Age(t, onceLock, time.Minute)
	want(t, "forgotten, just ended", prune(), 0)
	c.exec(`UPDATE pglock.occurrences SET started_at = started_at - interval '31 s', ended_at = ended_at - interval '31 s'`)
	c.exec(`SELECT setval('pglock.fencing_token', 5)`)
	want(t, "forgotten", prune(), 1)
	want(t, "names", c.names(), "")
	if next := c.take(onceLock); next.token <= g.token {
		t.Errorf("token %d after %d", next.token, g.token)
	}
}

// That an occurrence begins, and how it ends, is on the disk before anybody is told, whatever the session prefers: in a transaction that
// has written, too.
func TestTheBeginningAndTheEndAreDurable(t *testing.T) {
	t.Parallel()
	c := newCaller(t, pgtest.DB(t))
	g := c.take(onceLock)
	for _, call := range []string{fmt.Sprintf(`SELECT pglock.once_start('a', 0, %d, false)`, g.token), fmt.Sprintf(`SELECT pglock.once_end('a', 0, %d, 'done', '')`, g.token)} {
		for _, before := range []string{`SELECT 1`, `SELECT pg_current_xact_id()`} {
			c.exec(`BEGIN; SET LOCAL synchronous_commit = off`)
			c.exec(before)
			c.exec(call)
			want(t, "synchronous_commit after "+call, one[string](c, `SELECT current_setting('synchronous_commit')`), "local")
			c.exec(`COMMIT`)
		}
	}
}

// holder tells who holds a lock, and of one that nobody holds nothing.
func TestHolder(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	holder := func() string {
		return one[string](c, `SELECT concat_ws(' ', held, owner, token, since IS NULL, remaining BETWEEN '1 s' AND '30 s', remaining = '0') FROM pglock.holder('a')`)
	}
	want(t, "never held", holder(), "f t f t")
	g := c.takeWith(ask{name: "a", label: "me"})
	want(t, "held", holder(), fmt.Sprintf("t me %d f t f", g.token))
	db.Age(t, "a", time.Minute)
	want(t, "over", holder(), "f t f t")
	g = c.takeWith(ask{name: "a", hold: time.Minute})
	c.release(g)
	want(t, "kept from others", holder(), "f t f t")
	for _, seconds := range []int{20, 30, 25} {
		want(t, "a reader", one[string](c, `SELECT status FROM pglock.acquire(ARRAY['b'], ARRAY[gen_random_uuid()], 'reader of ' || $1::int,
			ARRAY[$1 * 1000000::bigint], kinds => ARRAY[-1])`, seconds), "granted")
	}
	want(t, "readers", one[string](c, `SELECT owner FROM pglock.holder('b')`), "reader of 30")
}
