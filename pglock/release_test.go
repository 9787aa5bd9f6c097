package pglock_test

import (
	"context"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// A renewal that has committed, but whose answer is still on the way, does not get in the way of the release.
func TestAReleaseFreesTheLockThoughARenewalIsInFlight(t *testing.T) {
	t.Parallel()
	d, p, c := connected(t)
	l := take(t, c, lockName, pglock.NoRenewal())
	wantErr(t, "Renew", l.Renew(soon(t)), nil)
	until := pgtest.Query[time.Time](t, d, `SELECT expires_at FROM pglock.leases WHERE name = $1`, lockName)
	p.Stall(pgtest.ToClient)
	renewing := async(func() error { return l.Renew(soon(t)) })
	d.WaitFor(t, `SELECT expires_at > $2 FROM pglock.leases WHERE name = $1`, lockName, until) // committed

	releasing := async(func() error { return l.Release(soon(t)) })

	wantErr(t, "Renew", happens(t, "Renew comes back at once", renewing), pglock.ErrReleased)
	d.WaitFor(t, isFree, lockName)
	take(t, client(t, d), lockName)
	p.Resume()
	wantErr(t, "Release", happens(t, "Release comes back", releasing), nil)
}

func TestAReleaseOutlastsALockOnItsRow(t *testing.T) {
	t.Parallel()
	for _, strength := range []string{"SHARE", "NO KEY UPDATE", "UPDATE"} {
		t.Run(strength, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			l := take(t, waiter(t, d), "a", pglock.NoRenewal())
			conn := d.Conn(t)
			if _, err := conn.Exec(t.Context(), `BEGIN; SELECT FROM pglock.leases FOR `+strength); err != nil {
				t.Fatal(err)
			}
			releasing := async(func() error { return l.Release(soon(t)) })
			waitsFor(t, d, 300*time.Millisecond)
			if _, err := conn.Exec(t.Context(), `ROLLBACK`); err != nil {
				t.Fatal(err)
			}
			wantErr(t, "Release", happens(t, "Release comes back", releasing), nil)
			if holds(t, d, "a") {
				t.Error("held after the release")
			}
		})
	}
}

func TestAReleaseWithAnEndedContextIsStillSent(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	l := take(t, client(t, d), "a")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errShutdown)
	if err := l.Release(ctx); err != nil { // the answer may have been there
		wantErr(t, "Release", err, pglock.ErrNotReleased)
		wantErr(t, "Release", err, errShutdown)
	}
	if l.Valid() {
		t.Error("valid after the release")
	}
	wantErr(t, "the lease's end", context.Cause(l.Context()), pglock.ErrReleased)
	d.WaitFor(t, isFree, "a")
}

func TestAReleaseIsBoundedByItsContextAndTriedOn(t *testing.T) {
	t.Parallel()
	d, p, c := connected(t)
	l := take(t, c, lockName, pglock.NoRenewal())
	p.Stall(pgtest.ToServer)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err := l.Release(ctx)
	wantErr(t, "Release", err, pglock.ErrNotReleased)
	wantErr(t, "Release", err, context.DeadlineExceeded)
	if l.Valid() {
		t.Error("valid after the release")
	}
	p.Cut()
	p.Resume()
	d.WaitFor(t, isFree, lockName)
}

// One that was told of the loss releases what the clock may have left of it.
func TestAReleaseAfterALapseFreesTheRest(t *testing.T) {
	t.Parallel()
	d, _, c := connected(t)
	l := take(t, c, lockName, pglock.TTL(2*time.Second), pglock.NoRenewal())
	wantLoss(t, l, pglock.Expired)
	wantErr(t, "Release", l.Release(soon(t)), pglock.ErrLost)
	d.WaitFor(t, `SELECT expires_at = 'epoch' OR expires_at < clock_timestamp() FROM pglock.leases WHERE name = $1`, lockName)
}

func TestOnlyOneOfManyReleasesIsTheRelease(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	l := take(t, client(t, d), "a")
	answers := make(chan error, 20)
	for range cap(answers) {
		go func() { answers <- l.Release(t.Context()) }()
	}
	released := 0
	for range cap(answers) {
		if err := happens(t, "Release comes back", answers); err == nil {
			released++
		} else {
			wantErr(t, "another Release", err, pglock.ErrReleased)
		}
	}
	if released != 1 {
		t.Errorf("%d calls released it", released)
	}
}
