package pglock_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// A term that is lost leaves nothing behind. 200 of them under PGLOCK_LONG=1. It does not run beside other tests: it counts
// goroutines.
func TestLosingAndRegainingLeavesNothingBehind(t *testing.T) {
	d := pgtest.DB(t)
	p := pgtest.NewProxy(t, d)
	a := candidate(t, p.URL(), "a", func(n *node) { n.cfg.RenewEvery = 20 * time.Millisecond })
	a.run(t)
	r := a.elected(t)
	wantErr(t, "Renew", r.lease.Renew(soon(t)), nil) // all that it needs is there
	goroutines, connections := runtime.NumGoroutine(), p.Conns()
	for range pgtest.Rounds(20, 200) {
		d.Exec(t, `DELETE FROM pglock.leases`)
		happens(t, "the loss", r.ctx.Done())
		wantErr(t, "the end of the lease", r.lease.Err(), pglock.ErrLost)
		r = a.elected(t)
	}
	wantErr(t, "Renew", r.lease.Renew(soon(t)), nil)
	eventually(t, "goroutines and connections are as they were", func() bool {
		return runtime.NumGoroutine() <= goroutines && p.Conns() <= connections
	})
}
