package pglock_test

import (
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/history"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// The database knows the latest acquisition of a name and no earlier one. One that is over and was followed by another's would
// be granted again, so it is not asked for any more; here it dies while the client connects anew after a lost reply.
func TestAnAcquisitionThatDiedWhileConnectingIsNotAskedForAgain(t *testing.T) {
	t.Parallel()
	const ttl = time.Second
	d := pgtest.DB(t)
	d.Exec(t, history.InstallLog("pglock"))
	p := pgtest.NewProxy(t, d)
	c := open(t, p.URL(), pglock.Config{TTL: ttl, Owner: "slow"})
	release(t, take(t, c, "a lock"))
	other := client(t, d)

	lost := p.LoseNextReply("a lock")
	trying := async(func() acquired { l, err := c.TryAcquire(t.Context(), "a lock"); return acquired{l, err} })
	p.Delay(pgtest.ToClient, ttl) // a new connection takes several answers
	happens(t, "the reply is lost", lost)
	d.WaitFor(t, isFree, "a lock")
	release(t, take(t, other, "a lock"))

	wantErr(t, "the try whose outcome was not known in time", happens(t, "it comes back", trying).err, pglock.ErrLost)
	const grants = `SELECT count(DISTINCT token) FROM pglock.lease_history WHERE owner = 'slow'`
	if n := pgtest.Query[int](t, d, grants); n != 2 {
		t.Errorf("the client was granted %d times, want 2: the try once", n)
	}
}
