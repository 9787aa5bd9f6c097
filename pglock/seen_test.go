package pglock_test

import (
	"strings"
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// forget sets the sequence and the leases back behind everybody's back, as a machine that is resumed from an image of its memory
// does: nothing that the database could compare differs.
func forget(t *testing.T, d *pgtest.Database, to int64) {
	t.Helper()
	d.Exec(t, `UPDATE pglock.leases SET token = least(token, $1), acquisition = NULL, expires_at = 'epoch'`, to)
	d.Exec(t, `SELECT setval('pglock.fencing_token', $1)`, to)
}

func bumps(t *testing.T, d *pgtest.Database) int {
	t.Helper()
	return pgtest.Query[int](t, d, `SELECT bumps FROM pglock.guard`)
}

// Whoever has seen more than the database knows of begins the hold, also for those who have seen nothing.
func TestAClientThatHasSeenMoreThanTheDatabaseHoldsGrantsBack(t *testing.T) {
	t.Parallel()
	d, elsewhere := pgtest.DB(t), pgtest.DB(t)
	before := drawn(t, d)
	c := client(t, d)
	lost := take(t, c, "a")
	forget(t, d, before)

	for _, asking := range []*pglock.Client{c, client(t, d)} {
		_, err := asking.TryAcquire(soon(t), "a")
		wantErr(t, "TryAcquire", err, pglock.ErrHeldBack)
	}
	d.Exec(t, `SELECT pglock.end_hold()`)
	if next := take(t, client(t, d), "a"); next.Token() <= lost.Token() {
		t.Errorf("token %d after %d", next.Token(), lost.Token())
	}
	// What was seen in one database is nothing to another.
	elsewhere.Exec(t, `SELECT setval('pglock.fencing_token', $1)`, before-1000)
	take(t, client(t, elsewhere), "a")
	if n := bumps(t, elsewhere); n != 0 {
		t.Errorf("%d bumps in a database that nobody has seen more of", n)
	}
}

// A token from days ahead of the clock is not followed: one client with a wrong memory must not use the tokens of all up. It is
// told what to do, and nobody else is held back.
func TestATokenTooFarAheadIsNotFollowed(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	before := drawn(t, d)
	c := client(t, d)
	const days = 2 * 86_400_000_000
	forget(t, d, before+days)
	poison := take(t, c, "a")
	forget(t, d, before)

	_, err := c.TryAcquire(soon(t), "a")
	wantErr(t, "TryAcquire", err, pglock.ErrTokensBehind)
	if err == nil || !strings.Contains(err.Error(), `lock "a"`) {
		t.Errorf("TryAcquire = %v, want it to name the lock", err)
	}
	_, err = c.Acquire(soon(t), "a") // waiting would not help
	wantErr(t, "Acquire", err, pglock.ErrTokensBehind)
	if now := drawn(t, d); now != before || bumps(t, d) != 0 {
		t.Errorf("the last token is %d after %d bumps, want %d and none", now, bumps(t, d), before)
	}
	release(t, take(t, client(t, d), "a"))
	wantErr(t, "RaiseTokenFloor", c.RaiseTokenFloor(soon(t), poison.Token()), nil)
	if next := take(t, c, "a"); next.Token() <= poison.Token() {
		t.Errorf("token %d after %d", next.Token(), poison.Token())
	}
}
