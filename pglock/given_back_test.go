package pglock_test

import (
	"context"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// A call that failed has run no job, so its HoldAtLeast must not keep others from running it.
func TestAGrantNobodyWasToldOfKeepsNobodyAway(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	p := pgtest.NewProxy(t, d)
	c := open(t, p.URL(), pglock.Config{})
	release(t, take(t, c, "another")) // the line is open
	p.Stall(pgtest.ToClient)
	ctx, cancel := context.WithCancel(t.Context())
	call := make(chan error, 1)
	go func() {
		_, err := c.TryAcquire(ctx, "nightly", pglock.HoldAtLeast(23*time.Hour))
		call <- err
	}()
	d.WaitFor(t, `SELECT EXISTS (SELECT FROM pglock.leases WHERE name = 'nightly' AND token > 0)`)
	cancel()
	wantErr(t, "TryAcquire", happens(t, "the end of the call", call), context.Canceled)
	p.Resume()

	d.WaitFor(t, `SELECT EXISTS (SELECT FROM pglock.leases WHERE name = 'nightly' AND expires_at = 'epoch')`)
	take(t, client(t, d), "nightly")
}

// HoldAtLeast outlives its holder, and whoever is refused for it is told that nobody is at work any more.
func TestHoldAtLeastSaysThatTheHolderIsGone(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := client(t, d)
	l := take(t, c, "nightly", pglock.HoldAtLeast(time.Hour))
	if held := refused(t, c, "nightly"); held.Over {
		t.Errorf("while it is held: %v", held)
	}
	release(t, l)
	if held := refused(t, c, "nightly"); !held.Over || held.Remaining < 50*time.Minute {
		t.Errorf("after the release: %v", held)
	}
}

func TestReleaseUnderTheLeasesOwnContextIsConfirmed(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := client(t, d)
	l := take(t, c, "a")
	wantErr(t, "Release", l.Release(l.Context()), nil)
	err := c.Do(soon(t), "a", func(ctx context.Context, l *pglock.Lease) error { return l.Release(ctx) })
	wantErr(t, "Do that was released inside", err, nil)
	take(t, c, "a")
}

func TestAHoldThatIsEndedByHandIsNoticed(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, `UPDATE pglock.guard SET no_grants_before = clock_timestamp() + interval '1 hour'`)
	c := client(t, d)
	_, err := c.TryAcquire(soon(t), "a")
	wantErr(t, "TryAcquire", err, pglock.ErrHeldBack)
	d.Exec(t, `UPDATE pglock.guard SET no_grants_before = clock_timestamp() + interval '1 hour'`)
	granted := make(chan error, 1)
	go func() { _, err := c.Acquire(soon(t), "a"); granted <- err }()
	d.Exec(t, `SELECT pglock.end_hold()`)
	wantErr(t, "Acquire", happens(t, "the grant", granted), nil)
}

func TestARaisedCapNeedsNoNewConnection(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := client(t, d)
	_, err := c.TryAcquire(soon(t), "a", pglock.TTL(time.Minute))
	wantErr(t, "TryAcquire above the cap", err, pglock.ErrInvalidOption)
	d.Exec(t, `UPDATE pglock.guard SET cap_us = 120000000`)
	take(t, c, "a", pglock.TTL(time.Minute))
}

func TestATTLWithoutRenewalsIsNotJudgedByThem(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := open(t, d.URL, pglock.Config{TTL: 25 * time.Second, RenewEvery: 10 * time.Second})
	take(t, c, "a", pglock.TTL(5*time.Second), pglock.NoRenewal())
	_, err := c.TryAcquire(soon(t), "b", pglock.TTL(5*time.Second))
	wantErr(t, "TryAcquire", err, pglock.ErrInvalidOption)
}
