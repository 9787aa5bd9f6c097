package pglock_test

import (
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// Whoever has waited for longer than a lease lives is granted a whole one all the same, and its renewals come in time.
func TestALeaseThatWasWaitedForLongerThanItsTTLIsWholeAndRenewed(t *testing.T) {
	t.Parallel()
	const ttl, wait = time.Second, 1500 * time.Millisecond
	d := pgtest.DB(t)
	holder := take(t, client(t, d), "a", pglock.NoRenewal())
	c := waiter(t, d)
	refused(t, c, "a")
	warm := take(t, c, "another") // a slow machine may take most of a short lease to connect for its first renewal
	wantErr(t, "Renew", warm.Renew(soon(t)), nil)
	release(t, warm)
	waiting := acquiring(soon(t), c, "a", pglock.TTL(ttl))
	waitsFor(t, d, wait)
	before := pgtest.Query[time.Time](t, d, `SELECT clock_timestamp()`)
	release(t, holder)

	l := granted(t, waiting)

	if !l.Valid() {
		t.Errorf("lost: %v", l.Err())
	}
	if inDatabase := left(t, d, "a"); inDatabase <= ttl/2 || inDatabase > ttl {
		t.Errorf("after a wait of %v the database leaves %v of %v", wait, inDatabase, ttl)
	}
	const whole = `SELECT token = $2 AND granted_at >= $3 AND expires_at >= granted_at + $4::interval FROM pglock.leases WHERE name = $1`
	if !pgtest.Query[bool](t, d, whole, "a", int64(l.Token()), before, ttl) {
		t.Errorf("%v, released after %v, is not granted for %v: %s", l, before, ttl, row(t, d, "a"))
	}
	for range 3 { // longer than it lives by itself
		renewedAgain(t, d, "a")
	}
	stillHeld(t, d, l)
}
