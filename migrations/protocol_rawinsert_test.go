package migrations_test

import (
	"fmt"
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// Somebody may write a row by hand. While that is not committed, the first to use the name waits for it, and nobody else
// does. What comes of the row decides nothing about the order of tokens: whoever is granted the lock later has the greater.

// blocked is a query for WaitFor: the session $1 waits for the transaction of another.
const blocked = `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted AND pid = $1)`

// waitingForRaw writes the row of a name by hand, and starts a call of slow for that name, which waits for the row.
func waitingForRaw(t *testing.T, db *pgtest.Database, raw, slow *caller, name string, token int64) <-chan answer {
	t.Helper()
	raw.exec(`BEGIN`)
	raw.exec(`INSERT INTO pglock.leases (name, token) VALUES ($1, $2)`, name, token)
	slow.exec(`SET lock_timeout = 0`) // it waits for as long as the test has to do
	got := make(chan answer, 1)
	go func() { got <- slow.acquire(ask{name: name}) }()
	db.WaitFor(t, blocked, slow.conn.PgConn().PID())
	return got
}

// ahead is a token that the sequence has not drawn yet, as a person may write it.
func ahead(c *caller) int64 { return c.lastToken() + 1000 }

func TestARowByHandThatIsRolledBackCostsNoOrder(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	raw, slow, quick := newCaller(t, db), newCaller(t, db), newCaller(t, db)
	for name, token := range map[string]int64{"fresh": 0, "ahead": ahead(raw)} {
		waiting := waitingForRaw(t, db, raw, slow, name, token)
		want(t, "another's try meanwhile", quick.try(name), "retry")
		quick.take("beside " + name)
		raw.exec(`ROLLBACK`)
		first := <-waiting
		want(t, "the one that waited", first.status, "granted")
		want(t, "another's try then", quick.try(name), "held")
		quick.exec(`DELETE FROM pglock.leases WHERE name = $1`, name)
		if next := quick.take(name); next.token <= first.token {
			t.Errorf("%s: token %d after %d", name, next.token, first.token)
		}
	}
}

// The row is committed and the waiting call goes on, and before it has the row another takes the lock, releases it, and the
// row is deleted.
func TestARowByHandThatIsCommittedCostsNoOrder(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	raw, slow, quick, gate := newCaller(t, db), newCaller(t, db), newCaller(t, db), newCaller(t, db)
	hookInto(t, db, beforeGrantLock)
	const remove, replant = `DELETE FROM pglock.leases WHERE name = $1`, `INSERT INTO pglock.leases (name) VALUES ($1)`
	for what, after := range map[string][]string{"kept": {}, "deleted": {remove}, "replanted": {remove, replant}} {
		for how, token := range map[string]int64{"fresh": 0, "ahead": ahead(raw)} {
			name := fmt.Sprintf("%s, %s", what, how)
			gate.exec(`SELECT pg_advisory_lock(1)`)
			slow.exec(`SET test.stall = 'on'`)
			waiting := waitingForRaw(t, db, raw, slow, name, token)
			raw.exec(`COMMIT`)
			db.WaitFor(t, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 1 AND NOT granted AND pid = $1)`,
				slow.conn.PgConn().PID()) // it sees the row, and does not have it yet
			other := quick.take(name)
			want(t, "release", quick.release(other), "released")
			for _, sql := range after {
				quick.exec(sql, name)
			}

			gate.exec(`SELECT pg_advisory_unlock(1)`)
			got := <-waiting

			if other.token <= token || got.status == "granted" && got.token <= other.token || got.status != "granted" && got.status != "retry" {
				t.Errorf("%s: %+v after token %d, after one of %d by hand; want a greater one, or retry", name, got, other.token, token)
			}
		}
	}
}

// The other is the one that waits for the row, is granted the lock after the rollback, releases it, and the row is deleted:
// all while a call is held up that began before.
func TestACallOlderThanARowByHandIsGrantedALaterTokenOnly(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	raw, slow, other := newCaller(t, db), newCaller(t, db), newCaller(t, db)
	hookInto(t, db, beforePlant)
	for _, end := range []string{`ROLLBACK`, `COMMIT`} {
		resume := stalled(t, db, slow, func() answer { return slow.acquire(ask{name: end}) })
		waiting := waitingForRaw(t, db, raw, other, end, 0)
		raw.exec(end)
		between := <-waiting
		want(t, "the one that waited", between.status, "granted")
		other.exec(`UPDATE pglock.leases SET expires_at = 'epoch' WHERE name = $1`, end)
		other.exec(`DELETE FROM pglock.leases WHERE name = $1`, end)

		got := resume()

		if got.status == "granted" && got.token <= between.token || got.status != "granted" && got.status != "retry" {
			t.Errorf("%s: %+v after token %d, want a greater one, or retry", end, got, between.token)
		}
	}
}
