package pglock_test

import (
	"context"
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

const lockName = "the lock that is asked for" // as it stands on the wire

// connected is a client through a proxy that has used its connection.
func connected(t *testing.T) (*pgtest.Database, *pgtest.Proxy, *pglock.Client) {
	t.Helper()
	d := pgtest.DB(t)
	p, c := connectedTo(t, d)
	return d, p, c
}

func connectedTo(t *testing.T, d *pgtest.Database) (*pgtest.Proxy, *pglock.Client) {
	t.Helper()
	p := pgtest.NewProxy(t, d)
	c := open(t, p.URL(), pglock.Config{})
	release(t, take(t, c, "another"))
	return p, c
}

func ways(c *pglock.Client) map[string]func(ctx context.Context) (*pglock.Lease, error) {
	return map[string]func(ctx context.Context) (*pglock.Lease, error){
		"TryAcquire": func(ctx context.Context) (*pglock.Lease, error) { return c.TryAcquire(ctx, lockName) },
		"Acquire":    func(ctx context.Context) (*pglock.Lease, error) { return c.Acquire(ctx, lockName) },
	}
}

// Whatever gets lost, the caller has one grant in the end, and the database has no other.
func TestALostAnswerIsSettledAsOneGrant(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	for what, lay := range map[string]func(p *pgtest.Proxy) []<-chan struct{}{
		"reply":   func(p *pgtest.Proxy) []<-chan struct{} { return []<-chan struct{}{p.LoseNextReply(lockName)} },
		"request": func(p *pgtest.Proxy) []<-chan struct{} { return []<-chan struct{}{p.LoseNextRequest(lockName)} },
		"two replies": func(p *pgtest.Proxy) []<-chan struct{} {
			return []<-chan struct{}{p.LoseNextReply(lockName), p.LoseNextReply(lockName)}
		},
		"one of either": func(p *pgtest.Proxy) []<-chan struct{} {
			return []<-chan struct{}{p.LoseNextRequest(lockName), p.LoseNextReply(lockName)}
		},
	} {
		for _, way := range []string{"TryAcquire", "Acquire"} {
			t.Run(what+", "+way, func(t *testing.T) {
				p, c := connectedTo(t, d)
				before := drawn(t, d)
				lost := lay(p)
				l, err := ways(c)[way](soon(t))
				if err != nil {
					t.Fatal(err)
				}
				for _, l := range lost {
					happens(t, "something is lost", l)
				}
				if got := drawn(t, d); got != before+1 || int64(l.Token()) != got {
					t.Errorf("tokens from %d to %d were drawn, the lease has %d", before+1, got, l.Token())
				}
				if token := pgtest.Query[int64](t, d, `SELECT token FROM pglock.leases WHERE name = $1`, lockName); token != int64(l.Token()) {
					t.Errorf("the row has token %d, the lease %d", token, l.Token())
				}
				wantErr(t, "Renew", l.Renew(soon(t)), nil)
				release(t, l)
				d.WaitFor(t, isFree, lockName)
			})
		}
	}
}

// A call that came back with an error leaves no lease behind, though its grant was on the way.
func TestAGrantWhoseCallerHasGoneIsGivenBack(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	for _, way := range []string{"TryAcquire", "Acquire"} {
		for what, fault := range map[string]func(p *pgtest.Proxy){
			"the reply comes later": func(p *pgtest.Proxy) { p.Resume() },
			"the reply never comes": func(p *pgtest.Proxy) { p.Cut(); p.Resume() },
		} {
			t.Run(way+", "+what, func(t *testing.T) {
				p, c := connectedTo(t, d)
				p.Stall(pgtest.ToClient)
				ctx, cancel := context.WithCancelCause(t.Context())
				call := async(func() error { _, err := ways(c)[way](ctx); return err })
				d.WaitFor(t, isHeld, lockName) // the database has granted it
				cancel(errShutdown)
				wantErr(t, way, happens(t, "the call comes back", call), errShutdown)

				fault(p)

				d.WaitFor(t, isFree, lockName)
				take(t, client(t, d), lockName)
			})
		}
	}
}

// The server ends the connection while it is at work on an acquisition or a release.
func TestAnAcquisitionSurvivesTheEndOfItsBackend(t *testing.T) {
	t.Parallel()
	d, _, c := connected(t)
	before := drawn(t, d)
	conn := d.Conn(t)
	if _, err := conn.Exec(t.Context(), `BEGIN; LOCK TABLE pglock.leases IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	waiting := acquiring(soon(t), c, lockName)
	d.WaitFor(t, pgtest.Waiting)
	if n := d.KillBackends(t, `wait_event_type = 'Lock'`); n != 1 {
		t.Errorf("ended %d backends", n)
	}
	d.WaitFor(t, pgtest.Waiting) // it asks again
	if _, err := conn.Exec(t.Context(), `ROLLBACK`); err != nil {
		t.Fatal(err)
	}

	l := granted(t, waiting)

	if int64(l.Token()) != before+1 || drawn(t, d) != before+1 {
		t.Errorf("token %d, %d drawn, want %d", l.Token(), drawn(t, d), before+1)
	}
	if n := d.KillBackends(t, `query LIKE '%acquire(%'`); n != 1 {
		t.Errorf("ended %d backends", n)
	}
	release(t, l)
	if holds(t, d, lockName) {
		t.Error("held after the release")
	}
}

func TestALostAnswerToAReleaseIsSettled(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	for what, lay := range map[string]func(p *pgtest.Proxy) <-chan struct{}{
		"reply":   func(p *pgtest.Proxy) <-chan struct{} { return p.LoseNextReply(lockName) },
		"request": func(p *pgtest.Proxy) <-chan struct{} { return p.LoseNextRequest(lockName) },
	} {
		t.Run(what, func(t *testing.T) {
			p, c := connectedTo(t, d)
			l := take(t, c, lockName, pglock.NoRenewal())
			lost := lay(p)
			wantErr(t, "Release", l.Release(soon(t)), nil)
			happens(t, "something is lost", lost)
			if holds(t, d, lockName) {
				t.Error("held after the release")
			}
		})
	}
}
