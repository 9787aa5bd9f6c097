package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

func TestATermEndsWhenLeadReturnsAndAnotherLeads(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	a, r, b := leaderAnd(t, d)
	if !a.IsLeader() || r.lease.Name() != "leader" {
		t.Errorf("a leads: %v, under %v", a.IsLeader(), r.lease)
	}

	r.answer <- nil

	next := b.elected(t)
	if next.lease.Token() <= r.lease.Token() || a.IsLeader() || !b.IsLeader() {
		t.Errorf("%v after %v; a leads: %v, b: %v", next.lease, r.lease, a.IsLeader(), b.IsLeader())
	}
	wantErr(t, "the end of the first lease", r.lease.Err(), pglock.ErrReleased)
}

func TestANodeIsACandidateAgainAfterAPause(t *testing.T) {
	t.Parallel()
	a := candidate(t, pgtest.DB(t).URL, "a", resting(10*time.Millisecond)).run(t)
	for range 3 {
		a.elected(t).answer <- nil
	}
	a.elected(t)
}

func TestAnErrorOfLeadEndsRunWithIt(t *testing.T) {
	t.Parallel()
	a, r, b := leaderAnd(t, pgtest.DB(t))

	r.answer <- errWork

	wantErr(t, "Run", happens(t, "Run ends", a.ended), errWork)
	b.elected(t)
}

func TestAPanicOfLeadFreesTheLeaseAndEndsRunWithItsValueAndStack(t *testing.T) {
	t.Parallel()
	for what, value := range map[string]any{"error": errWork, "text": "oh", "cancelled": context.Canceled} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			a, r, b := leaderAnd(t, pgtest.DB(t), func(n *node) { n.lead = panics(value) })
			a.stop(errShutdown) // though the context has ended

			err := happens(t, "Run ends", a.ended)
			var p *pglock.PanicError
			if !errors.As(err, &p) || p.Value != value || !strings.Contains(string(p.Stack), "elector_test.go") || !strings.Contains(err.Error(), "election \"") {
				t.Errorf("Run = %v", err)
			}
			if cause, ok := value.(error); ok {
				wantErr(t, "Run", err, cause)
			}
			b.elected(t)
			wantErr(t, "the lease", r.lease.Err(), pglock.ErrReleased)
		})
	}
}

func panics(value any) func(*leading) error {
	return func(r *leading) error { <-r.ctx.Done(); panic(value) }
}

func TestGoexitInLeadFreesTheLease(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	e, err := pglock.NewElector(client(t, d), "leader", pglock.ElectorConfig{})
	if err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		e.Run(t.Context(), func(context.Context, *pglock.Lease) error { runtime.Goexit(); return nil }) //nolint:errcheck // it does not return
		t.Error("Run returned")
	}()
	happens(t, "the goroutine exits", exited)
	if holds(t, d, "leader") || e.IsLeader() || e.Health() != nil {
		t.Errorf("held: %v, leads: %v, %v", holds(t, d, "leader"), e.IsLeader(), e.Health())
	}
	candidate(t, d.URL, "b").run(t).elected(t)
	wantErr(t, "Resign", e.Resign(soon(t)), nil)
}

// The client renews, whatever lead does: one that needs long to begin its work keeps its lease.
func TestASlowStartOfLeadDelaysNoRenewal(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	_, r, b := leaderAnd(t, d, renewsOften, isStubborn)
	for range 3 {
		renewedAgain(t, d, "leader")
	}
	if r.ctx.Err() != nil {
		t.Errorf("the term is over: %v", context.Cause(r.ctx))
	}
	b.follows(t)
	r.answer <- nil
}

func TestOnShutdownTheLeaseIsRenewedUntilLeadHasReturnedAndNoSuccessorBeginsBefore(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	a, r, b := leaderAnd(t, d, renewsOften, isStubborn)

	a.stop(errShutdown)

	happens(t, "the term's context ends", r.ctx.Done())
	wantErr(t, "the cause", context.Cause(r.ctx), errShutdown)
	renewedAgain(t, d, "leader")
	b.follows(t)
	if !r.lease.Valid() || !a.IsLeader() {
		t.Errorf("the lease ended under lead: %v", r.lease.Err())
	}
	r.answer <- r.ctx.Err()
	b.elected(t)
	err := happens(t, "Run ends", a.ended)
	wantErr(t, "Run", err, errShutdown)
	if errors.Is(err, pglock.ErrLost) || errors.Is(err, pglock.ErrNotReleased) {
		t.Errorf("Run = %v", err)
	}
}

func TestACandidateThatIsShutDownHasNotLed(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	_, _, b := leaderAnd(t, d)
	d.WaitFor(t, `SELECT EXISTS (SELECT FROM pglock.waits)`)
	b.stop(errShutdown)
	err := happens(t, "Run ends", b.ended)
	wantErr(t, "Run", err, errShutdown)
	wantErr(t, "Run", err, pglock.ErrHeld)
	if len(b.terms) > 0 {
		t.Error("lead was called")
	}
}

// A lease is never released under a lead that runs: it lapses, and whoever leads then has a later token.
func TestALeadThatDoesNotReturnInTimeLetsTheLeaseLapse(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	a := candidate(t, d.URL, "a", isStubborn, func(n *node) {
		n.cfg.TTL = 5 * time.Second
		n.elect = func(c *pglock.ElectorConfig) { c.WindDown = time.Millisecond }
	}).run(t)
	r := a.elected(t)

	a.stop(errShutdown)

	wantLoss(t, r.lease, pglock.Expired)
	if err := a.Health(); !errors.Is(err, pglock.ErrLost) || a.IsLeader() {
		t.Errorf("Health = %v; leads: %v", err, a.IsLeader())
	}
	d.WaitFor(t, isFree, "leader")
	if pgtest.Query[bool](t, d, `SELECT expires_at = 'epoch' FROM pglock.leases`) {
		t.Error("the lease was released under lead")
	}
	b := candidate(t, d.URL, "b").run(t)
	if next := b.elected(t); next.lease.Token() <= r.lease.Token() {
		t.Errorf("%v after %v", next.lease, r.lease)
	}
	select {
	case err := <-a.ended:
		t.Fatalf("Run has ended under lead: %v", err)
	default:
	}
	r.answer <- nil
	err := happens(t, "Run ends", a.ended)
	wantErr(t, "Run", err, errShutdown)
	wantErr(t, "Run", err, pglock.ErrLost)
	wantErr(t, "Health", a.Health(), nil)
	if !b.IsLeader() {
		t.Error("the late end of a's term ended b's")
	}
}

func TestALossEndsTheTermAndANewCandidacyBeginsWhenLeadHasReturned(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	a := candidate(t, d.URL, "a", renewsOften, isStubborn, resting(time.Hour)).run(t)
	for _, answer := range []error{
		nil, pglock.ErrLost, fmt.Errorf("work: %w", context.Canceled), &fence.StaleError{},
	} {
		r := a.elected(t)
		wantErr(t, "Health", a.Health(), nil)
		d.Exec(t, `DELETE FROM pglock.leases`)

		happens(t, "the term's context ends", r.ctx.Done())
		var lost *pglock.LostError
		if cause := context.Cause(r.ctx); !errors.As(cause, &lost) || lost.Cause != pglock.Deleted {
			t.Errorf("the cause is %v", cause)
		}
		wantErr(t, "Health", a.Health(), pglock.ErrLost)
		if a.IsLeader() || pglock.Queued(a.client, "leader") > 0 {
			t.Error("it leads, or is a candidate, while lead still runs")
		}
		r.answer <- answer
	}
	r := a.elected(t) // at once, and not after the pause
	d.Exec(t, `DELETE FROM pglock.leases`)
	happens(t, "the term's context ends", r.ctx.Done())
	r.answer <- errWork
	err := happens(t, "Run ends with an error that is lead's own", a.ended)
	wantErr(t, "Run", err, errWork)
	wantErr(t, "Run", err, pglock.ErrLost)
}

// Nobody has led for an hour, and the last leader did not resign.
func TestTheFirstNodeAfterAnOutageOfAllLeadsAtOnce(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	take(t, client(t, d), "leader", pglock.NoRenewal())
	d.Age(t, "leader", time.Hour)
	candidate(t, d.URL, "a").run(t).elected(t)
}

func TestAnElectorRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	c := nowhere(t)
	for what, construct := range map[string]func() (*pglock.Elector, error){
		"no client":            func() (*pglock.Elector, error) { return pglock.NewElector(nil, "a", pglock.ElectorConfig{}) },
		"a negative pause":     func() (*pglock.Elector, error) { return pglock.NewElector(c, "a", pglock.ElectorConfig{Pause: -1}) },
		"a negative wind-down": func() (*pglock.Elector, error) { return pglock.NewElector(c, "a", pglock.ElectorConfig{WindDown: -1}) },
		"a TTL that is short":  func() (*pglock.Elector, error) { return pglock.NewElector(c, "a", pglock.ElectorConfig{TTL: 1}) },
		"odd metadata": func() (*pglock.Elector, error) {
			return pglock.NewElector(c, "a", pglock.ElectorConfig{Metadata: func() {}})
		},
	} {
		_, err := construct()
		wantErr(t, what, err, pglock.ErrInvalidOption)
	}
	_, err := pglock.NewElector(c, "", pglock.ElectorConfig{})
	wantErr(t, "no name", err, pglock.ErrInvalidName)

	a := candidate(t, pgtest.DB(t).URL, "a").run(t)
	a.elected(t)
	wantErr(t, "Run without a function", a.Run(t.Context(), nil), pglock.ErrInvalidOption)
	must := func(context.Context, *pglock.Lease) error { t.Error("it ran"); return nil }
	wantErr(t, "Run beside Run", a.Run(t.Context(), must), pglock.ErrInvalidOption)
	wantErr(t, "Close", a.client.Close(soon(t)), nil)
	wantErr(t, "Run when the client is closed under it", happens(t, "Run ends", a.ended), pglock.ErrClosed)
	wantErr(t, "Run on a closed client", a.Run(t.Context(), must), pglock.ErrClosed)
}
