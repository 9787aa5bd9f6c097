package pglock_test

import (
	"context"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// All callers of a client share its connections, so one that gives up must not break them.
func TestACancelledCallerCostsNobodyElseAnything(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	p := pgtest.NewProxy(t, d)
	c := open(t, p.URL(), pglock.Config{RenewEvery: 300 * time.Millisecond})
	first := take(t, c, "first")
	renewedAgain(t, d, "first") // both connections are open
	conns, before := p.Conns(), p.Counts()
	p.Stall(pgtest.ToClient)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancelled := async(func() error { _, err := c.TryAcquire(ctx, "cancelled"); return err })
	d.WaitFor(t, isHeld, "cancelled") // the database has granted it
	other := async(func() acquired { l, err := c.TryAcquire(soon(t), "other"); return acquired{l, err} })
	cancel(errShutdown)
	wantErr(t, "the cancelled TryAcquire", happens(t, "it comes back", cancelled), errShutdown)

	p.Resume()

	l := granted(t, other)
	d.WaitFor(t, isFree, "cancelled")
	renewedAgain(t, d, "first")
	stillHeld(t, d, first)
	stillHeld(t, d, l)
	if n := p.Conns(); n != conns {
		t.Errorf("%d connections, were %d", n, conns)
	}
	if n := p.Counts().Since(before).ToServer[0]; n != 0 { // a request to cancel is a connection too
		t.Errorf("%d connections were made because a caller gave up", n)
	}
}
