package pglock_test

import (
	"context"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// hangs is a query for WaitFor and Query: a session of the client waits for a synchronous standby.
const hangs = `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'pglock')`

// A lonelyPrimary is a server whose commits wait for a synchronous standby that is not there.
type lonelyPrimary struct{ *pgtest.Database }

func newLonelyPrimary(t *testing.T) (p lonelyPrimary, url string) {
	t.Helper()
	_, d := pgtest.OwnServer(t, pgtemp.Options{})
	return lonelyPrimary{d}, with(t, d.URL, "synchronous_commit", "on")
}

// loseStandby returns when commits wait. The setting reaches the sessions at some later time, so one probes after the other
// until one waits.
func (p lonelyPrimary) loseStandby(t *testing.T) {
	t.Helper()
	p.setStandby(t, `SET synchronous_standby_names = 'nobody'`)
	const probe = `SET synchronous_commit = on; SET application_name = 'probe'; SELECT pg_logical_emit_message(true, 'probe', '')`
	for waits := false; !waits; {
		conn := p.Conn(t)
		committed := async(func() error { _, err := conn.Exec(t.Context(), probe); return err })
		for back := false; !back && !waits; {
			select {
			case err := <-committed:
				wantErr(t, "probe", err, nil)
				back = true
			default:
				waits = pgtest.Query[bool](t, p.Database, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')`)
			}
		}
		if waits {
			p.KillBackends(t, `application_name = 'probe'`)
			<-committed
		}
	}
}

// findStandby lets every commit that waits, and later ones, come back.
func (p lonelyPrimary) findStandby(t *testing.T) {
	t.Helper()
	p.setStandby(t, `RESET synchronous_standby_names`)
}

func (p lonelyPrimary) setStandby(t *testing.T, what string) {
	t.Helper()
	p.Exec(t, `ALTER SYSTEM `+what)
	p.Exec(t, `SELECT pg_reload_conf()`)
}

// end ends the waits of the client's sessions, gently or not.
func (p lonelyPrimary) end(t *testing.T, how string) {
	t.Helper()
	p.WaitFor(t, hangs)
	p.Exec(t, `SELECT `+how+`(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'pglock'`)
}

func TestAGrantThatHangsCostsNoOtherLeaseAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	p, url := newLonelyPrimary(t)
	c := open(t, url, pglock.Config{TTL: ttl})
	held := take(t, c, "held")
	p.loseStandby(t)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hanging := acquiring(ctx, c, "hangs", pglock.NoRenewal(), pglock.TTL(30*time.Second))
	p.WaitFor(t, hangs)
	now := pgtest.Query[time.Time](t, p.Database, `SELECT clock_timestamp()`)
	p.WaitFor(t, `SELECT expires_at > $2 FROM pglock.leases WHERE name = $1`, "held", now.Add(2*ttl)) // renewed a TTL later
	wantErr(t, "the lease beside it", held.Err(), nil)

	cancel()
	wantErr(t, "the call that hangs, once its ctx has ended", happens(t, "it comes back", hanging).err, context.Canceled)
	if !pgtest.Query[bool](t, p.Database, hangs) {
		t.Error("its commit does not hang any more: nothing was tested")
	}
	p.findStandby(t)
	p.WaitFor(t, isFree, "hangs") // well before the end of its TTL
	wantErr(t, "the lease beside it", held.Err(), nil)
	release(t, held)
}

// The commit of a grant whose wait was cancelled is on this server and perhaps on no other.
func TestACancelledWaitForAStandbyIsNoGrant(t *testing.T) {
	t.Parallel()
	p, url := newLonelyPrimary(t)
	c := open(t, with(t, url, "client_min_messages", "error"), pglock.Config{TTL: 30 * time.Second}) // the cancelled wait is told by a warning
	release(t, take(t, c, "a"))
	p.loseStandby(t)

	trying := async(func() acquired { l, err := c.TryAcquire(t.Context(), "a"); return acquired{l, err} })
	p.end(t, "pg_cancel_backend")
	if got := happens(t, "the try comes back", trying); got.err == nil {
		t.Fatalf("the try was granted %v", got.lease)
	}
	p.WaitFor(t, isFree, "a") // given back

	unconfirmed := drawn(t, p.Database)
	waiting := acquiring(soon(t), c, "a")
	p.end(t, "pg_cancel_backend")
	p.WaitFor(t, hangs) // it tries again
	p.findStandby(t)
	l := granted(t, waiting)
	if int64(l.Token()) <= unconfirmed+1 {
		t.Errorf("it was granted token %d, want one later than those of the grants that were cancelled, %d and %d",
			l.Token(), unconfirmed, unconfirmed+1)
	}
	release(t, l)
}

// A backend that is ended while it waits has committed here, and its client is told nothing.
func TestAKilledWaitForAStandbyIsSettledById(t *testing.T) {
	t.Parallel()
	p, url := newLonelyPrimary(t)
	c := open(t, url, pglock.Config{TTL: 30 * time.Second})
	release(t, take(t, c, "a"))
	before := drawn(t, p.Database)
	p.loseStandby(t)

	waiting := acquiring(soon(t), c, "a")
	p.end(t, "pg_terminate_backend")
	l := granted(t, waiting)
	if want := before + 1; int64(l.Token()) != want || drawn(t, p.Database) != want {
		t.Errorf("token %d was granted and %d drawn last, want %d: one acquisition, one grant", l.Token(), drawn(t, p.Database), want)
	}
	p.findStandby(t)
	release(t, l)
	if holds(t, p.Database, "a") {
		t.Error("it is held after its release")
	}
}
