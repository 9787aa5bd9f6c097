package pglock_test

import (
	"context"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// passes blocks until so much time has passed on the server: for what has to fail for a while.
func passes(t *testing.T, d *pgtest.Database, long time.Duration) {
	t.Helper()
	now := pgtest.Query[time.Time](t, d, `SELECT clock_timestamp()`)
	d.WaitFor(t, `SELECT clock_timestamp() > $1`, now.Add(long))
}

func TestAcquireWaitsThroughAnOutage(t *testing.T) {
	t.Parallel()
	for what, start := range map[string]struct {
		connected bool
		fault     func(p *pgtest.Proxy)
	}{
		"from the start":      {false, func(p *pgtest.Proxy) { p.Refuse(true) }},
		"under a connection":  {true, func(p *pgtest.Proxy) { p.Refuse(true); p.Cut() }},
		"under a call":        {true, func(p *pgtest.Proxy) { p.Stall(pgtest.Both) }},
		"silent at the start": {false, func(p *pgtest.Proxy) { p.Stall(pgtest.Both) }},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			p := pgtest.NewProxy(t, d)
			c := open(t, p.URL(), pglock.Config{})
			if start.connected {
				release(t, take(t, c, "another"))
			}
			start.fault(p)
			waiting := acquiring(soon(t), c, "a")
			passes(t, d, time.Second)
			select {
			case got := <-waiting:
				t.Fatalf("Acquire came back during the outage: %v, %v", got.lease, got.err)
			default:
			}
			p.Cut()
			p.Refuse(false)
			p.Resume()

			l := granted(t, waiting)

			wantErr(t, "Renew", l.Renew(soon(t)), nil)
			refused(t, client(t, d), "a")
		})
	}
}

func TestAWaitThroughAnOutageSaysWhyItEnded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, errShutdown)
	defer cancel()
	_, err := nowhere(t).Acquire(ctx, "a")
	wantErr(t, "Acquire", err, errShutdown)
	if _, once := nowhere(t).TryAcquire(t.Context(), "a"); once == nil {
		t.Error("TryAcquire without a server succeeds")
	}
}

func TestLeasesOutliveAnOutageThatIsShorterThanTheirTrust(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	p := pgtest.NewProxy(t, d)
	c := open(t, p.URL(), pglock.Config{RenewEvery: 100 * time.Millisecond})
	leases := []*pglock.Lease{take(t, c, "a"), take(t, c, "b"), take(t, c, "c")}
	p.Refuse(true)
	p.Cut()
	passes(t, d, time.Second)
	p.Refuse(false)
	renewedAgain(t, d, "a")
	for _, l := range leases {
		stillHeld(t, d, l)
	}
}
