package pglock_test

import (
	"context"
	"errors"
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

// So is whoever has waited for it, however it waits: also where the try that was refused has marked the wait.
func TestAWaitForWhatIsOnlyKeptSaysThatTheHolderIsGone(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	holder, waiter := client(t, d), attentive(t, d, d.URL, pglock.Config{})
	released := func(opts ...pglock.Option) func(*testing.T, string) {
		return func(t *testing.T, name string) {
			release(t, take(t, holder, name, append(opts, pglock.HoldAtLeast(time.Hour))...))
		}
	}
	crashed := func(t *testing.T, name string) {
		take(t, holder, name, pglock.LockDelay(time.Hour), pglock.NoRenewal())
		age(t, d, name, 0)
	}
	for what, c := range map[string]struct {
		keep func(*testing.T, string)
		more []string
		opts []pglock.Option
		over bool
		n    int // permits
	}{
		"held":             {keep: func(t *testing.T, name string) { take(t, holder, name) }},
		"held by a reader": {keep: func(t *testing.T, name string) { take(t, holder, name, pglock.Shared()) }},
		"held by all permits": {keep: func(t *testing.T, name string) {
			take(t, holder, name, pglock.Permits(2))
			take(t, holder, name, pglock.Permits(2))
		}, opts: []pglock.Option{pglock.Permits(2)}, n: 2},
		"held, in a line":               {keep: func(t *testing.T, name string) { take(t, holder, name) }, opts: []pglock.Option{pglock.Fair()}},
		"HoldAtLeast":                   {keep: released(), over: true},
		"LockDelay":                     {keep: crashed, over: true},
		"HoldAtLeast of a reader":       {keep: released(pglock.Shared()), over: true},
		"HoldAtLeast of the one permit": {keep: released(pglock.Permits(1)), opts: []pglock.Option{pglock.Permits(1)}, over: true},
		"HoldAtLeast, in a line":        {keep: released(), opts: []pglock.Option{pglock.Fair()}, over: true},
		"LockDelay, in a line":          {keep: crashed, opts: []pglock.Option{pglock.Fair()}, over: true},
		"HoldAtLeast of one of several": {keep: released(), more: []string{"another"}, over: true},
	} {
		t.Run(what, func(t *testing.T) {
			c.keep(t, what)
			ctx, cancel := context.WithCancel(t.Context())
			waiting := async(func() error {
				_, err := waiter.AcquireAll(ctx, append([]string{what}, c.more...), c.opts...)
				return err
			})
			queued(t, waiter, what, 1)
			eventually(t, "it is refused", func() bool { return pglock.Refused(waiter, what) })
			cancel()
			err := happens(t, "the end of the wait", waiting)
			held, ok := errors.AsType[*pglock.HeldError](err)
			if !ok || held.Over != c.over || held.Permits != c.n || c.over && held.Remaining < 50*time.Minute {
				t.Errorf("%v, want it to say that the holder is gone: %v; of %d permits", err, c.over, c.n)
			}
		})
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
	err = c.Do(soon(t), "a", func(ctx context.Context, l *pglock.Lease) error {
		return c.Do(ctx, "b", func(ctx context.Context, _ *pglock.Lease) error { return l.Release(ctx) }) // ends a moment later
	})
	wantErr(t, "Do that was released in another", err, nil)
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
