package pglock_test

import (
	"context"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

func TestResignEndsTheTermAndAnotherLeads(t *testing.T) {
	t.Parallel()
	a, r, b := leaderAnd(t, pgtest.DB(t), resting(4*time.Second))
	wantErr(t, "Resign of one that does not lead", b.Resign(soon(t)), nil)

	wantErr(t, "Resign", a.Resign(soon(t)), nil)

	wantErr(t, "the cause", context.Cause(r.ctx), pglock.ErrResigned)
	wantErr(t, "the end of the lease", r.lease.Err(), pglock.ErrReleased)
	next := b.elected(t)
	a.follows(t) // a candidate again
	if err := next.ctx.Err(); err != nil {
		t.Errorf("Resign of b, before, ended its term: %v", err)
	}
	wantErr(t, "Resign", b.Resign(soon(t)), nil)
	a.elected(t)
}

// The only node there is leads again.
func TestOneThatResignedLeadsAgainIfNobodyElseWould(t *testing.T) {
	t.Parallel()
	a := candidate(t, pgtest.DB(t).URL, "a").run(t)
	first := a.elected(t)
	wantErr(t, "Resign", a.Resign(soon(t)), nil)
	if again := a.elected(t); again.lease.Token() <= first.lease.Token() {
		t.Errorf("%v after %v", again.lease, first.lease)
	}
}

func TestResignWaitsForLeadAtMostUntilItsCtxEnds(t *testing.T) {
	t.Parallel()
	a, r, b := leaderAnd(t, pgtest.DB(t), isStubborn)
	ctx, cancel := context.WithCancelCause(t.Context())
	resigning := async(func() error { return a.Resign(ctx) })
	happens(t, "the term's context ends", r.ctx.Done())
	cancel(errShutdown)
	wantErr(t, "Resign", happens(t, "Resign comes back", resigning), errShutdown)
	b.follows(t)
	r.answer <- nil
	b.elected(t)
}

func TestOneThatAbstainsDoesNotLeadUntilItStands(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	a := candidate(t, d.URL, "a")
	wantErr(t, "Abstain before Run", a.Abstain(soon(t)), nil)
	a.run(t)
	b := candidate(t, d.URL, "b").run(t)
	first := b.elected(t)
	if n := pglock.Queued(a.client, "leader"); n != 0 {
		t.Errorf("a waits for the lock, and abstains")
	}

	a.Stand()
	a.follows(t)
	wantErr(t, "Abstain while waiting", a.Abstain(soon(t)), nil)
	queued(t, a.client, "leader", 0)
	wantErr(t, "Abstain while leading", b.Abstain(soon(t)), nil)
	wantErr(t, "the cause", context.Cause(first.ctx), pglock.ErrResigned)
	passes(t, d, 300*time.Millisecond)
	if holds(t, d, "leader") || len(a.terms) > 0 || len(b.terms) > 0 {
		t.Error("one that abstains leads")
	}

	a.Stand()
	a.elected(t)
	b.stop(errShutdown)
	wantErr(t, "Run", happens(t, "Run ends, abstaining", b.ended), errShutdown)
}

// A database that is silent just then neither makes a node unhealthy whose lead has returned, nor ends its part in the election.
func TestANodeWhoseReleaseIsNotAnsweredIsHealthyAndGoesOn(t *testing.T) {
	t.Parallel()
	p := pgtest.NewProxy(t, pgtest.DB(t))
	a := candidate(t, p.URL(), "a").run(t)
	r := a.elected(t)
	p.Stall(pgtest.Both)
	r.answer <- nil
	happens(t, "the lease ends", r.lease.Done())
	if err := a.Health(); err != nil || a.IsLeader() {
		t.Errorf("Health = %v; leads: %v", err, a.IsLeader())
	}
	wantErr(t, "Resign, while the release is under way", a.Resign(soon(t)), pglock.ErrNotReleased)
	p.Cut()
	p.Resume()
	a.elected(t)
}
