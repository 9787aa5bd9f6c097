package pglock_test

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// A safeBuffer is a log that is written by several goroutines.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestAStandbyNodeIsSilentAndKnowsTheLeader(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	a := candidate(t, d.URL, "a", renewsOften).run(t)
	r := a.elected(t)
	var said safeBuffer
	b := candidate(t, d.URL, "b", func(n *node) { n.cfg.Logger = slog.New(slog.NewTextHandler(&said, nil)) }).run(t)
	listening(t, b.client)
	d.WaitFor(t, `SELECT EXISTS (SELECT FROM pglock.waits)`)
	for range pgtest.Rounds(2, 20) {
		renewedAgain(t, d, "leader")
		passes(t, d, 500*time.Millisecond)
	}
	b.follows(t)
	l, err := b.Leader(soon(t))
	if err != nil || l.Owner != "a" || l.Token != r.lease.Token() || l.Since.IsZero() {
		t.Errorf("Leader = %+v, %v", l, err)
	}
	wantErr(t, "Health", b.Health(), nil)
	if text := said.String(); text != "" {
		t.Errorf("it has logged: %s", text)
	}
}

func TestLeaderSaysWhenNobodyLeads(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	e := candidate(t, d.URL, "a")
	_, err := e.Leader(soon(t))
	wantErr(t, "Leader of an election that never was", err, pglock.ErrNoLeader)
	release(t, take(t, e.client, "leader"))
	_, err = e.Leader(soon(t))
	wantErr(t, "Leader after a resignation", err, pglock.ErrNoLeader)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errShutdown)
	_, err = e.Leader(ctx)
	wantErr(t, "Leader with a ctx that has ended", err, errShutdown)
}

// Whoever may take locks may know who leads, and so may whoever inspects them; a stranger may not.
func TestToKnowTheLeaderNeedsNoMoreRightsThanToLead(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	l := take(t, open(t, d.URL, pglock.Config{Owner: "a"}), "leader")
	for _, c := range []struct {
		grants string
		want   error
	}{
		{`SELECT pglock.grant_locker('%s')`, nil},
		{`SELECT pglock.grant_auditor('%s')`, nil},
		{`GRANT USAGE ON SCHEMA pglock TO %s`, pglock.ErrNotAllowed},
	} {
		role := d.Role(t)
		d.Exec(t, fmt.Sprintf(c.grants, role))
		e := candidate(t, d.URLAs(role), "looks on")
		leader, err := e.Leader(soon(t))
		wantErr(t, "Leader after "+c.grants, err, c.want)
		if err == nil && (leader.Owner != "a" || leader.Token != l.Token() || time.Since(leader.Since) > time.Minute) {
			t.Errorf("Leader after %s = %+v", c.grants, leader)
		}
		for seen, err := range e.Observe(soon(t)) {
			wantErr(t, "Observe after "+c.grants, err, c.want)
			if seen != leader {
				t.Errorf("Observe after %s = %+v", c.grants, seen)
			}
			break
		}
	}
}

// No answer of the database is needed.
func TestANodeDoesNotTakeItselfForTheLeaderWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	p := pgtest.NewProxy(t, d)
	a := candidate(t, p.URL(), "a", isStubborn, func(n *node) { n.cfg.TTL = 4 * time.Second }).run(t)
	r := a.elected(t)
	p.Stall(pgtest.Both)
	happens(t, "the term's context ends", r.ctx.Done())
	if a.IsLeader() {
		t.Error("it takes itself for the leader")
	}
	wantErr(t, "Health", a.Health(), pglock.ErrLost)
	p.Resume()
	r.answer <- nil
	a.elected(t)
	wantErr(t, "Health", a.Health(), nil)
}

// A sight is one answer of Observe.
type sight struct {
	pglock.Leader
	err error
}

// watch collects what an iteration yields; stop ends it, and returns when it has.
func watch(t *testing.T, observe func(ctx context.Context) iter.Seq2[pglock.Leader, error]) (sights <-chan sight, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	seen := make(chan sight, 1000)
	go func() {
		defer close(seen)
		for l, err := range observe(ctx) {
			seen <- sight{l, err}
		}
	}()
	stop = func() {
		cancel()
		for range seen {
		}
	}
	t.Cleanup(stop)
	return seen, stop
}

func TestObserveTellsTheFirstStateAndEachChange(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	p := pgtest.NewProxy(t, d)
	a := candidate(t, d.URL, "a", resting(time.Minute))
	far := candidate(t, p.URL(), "only looks on") // without Run
	near, _ := watch(t, a.Observe)
	away, stop := watch(t, far.Observe)
	both := func(what, owner string, want error) {
		t.Helper()
		for where, sights := range map[string]<-chan sight{"in the process": near, "elsewhere": away} {
			if s := happens(t, what+", seen "+where, sights); s.Owner != owner {
				t.Errorf("%s, seen %s: %+v", what, where, s)
			} else {
				wantErr(t, what, s.err, want)
			}
		}
	}
	both("the first state", "", pglock.ErrNoLeader)
	a.run(t)
	r := a.elected(t)
	both("an election", "a", nil)
	r.answer <- nil
	both("a resignation", "", pglock.ErrNoLeader)
	b := candidate(t, d.URL, "b").run(t)
	b.elected(t)
	both("another is elected", "b", nil)

	p.Refuse(true)
	p.Cut()
	if s := happens(t, "the database is gone", away); s.err == nil {
		t.Errorf("the database is gone: %+v", s)
	}
	p.Refuse(false)
	if s := happens(t, "it is back", away); s.err != nil || s.Owner != "b" {
		t.Errorf("the database is back: %+v", s)
	}
	stop()
	wantErr(t, "Close", far.client.Close(soon(t)), nil)
	last, _ := watch(t, far.Observe)
	wantErr(t, "Observe on a closed client", happens(t, "it ends", last).err, pglock.ErrClosed)
	if _, more := <-last; more {
		t.Error("it goes on")
	}
}

// Whoever leaves the loop, or is slow in it, holds up no election.
func TestASlowObserverHoldsUpNobody(t *testing.T) {
	t.Parallel()
	a := candidate(t, pgtest.DB(t).URL, "a", resting(time.Millisecond)).run(t)
	for range a.Observe(t.Context()) {
		for range 3 {
			a.elected(t).answer <- nil
		}
		break
	}
	a.elected(t)
}

// While the database is away, an error was told. One that waiting does not cure is told all the same, and ends the sequence: who
// looks on through an outage is not left with a client that is closed, or a schema that is gone.
func TestObserveEndsThoughTheDatabaseWasAway(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		then func(*testing.T, *pgtest.Database, *pgtest.Proxy, *node)
		want error
	}{
		"the client is closed": {func(t *testing.T, _ *pgtest.Database, _ *pgtest.Proxy, n *node) {
			wantErr(t, "Close", n.client.Close(soon(t)), nil)
		}, pglock.ErrClosed},
		"the schema is gone": {func(t *testing.T, d *pgtest.Database, p *pgtest.Proxy, _ *node) {
			d.Exec(t, `DROP SCHEMA pglock CASCADE`)
			p.Refuse(false)
		}, pglock.ErrNotMigrated},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := pgtest.Copy(t)
			p := pgtest.NewProxy(t, d)
			p.Refuse(true)
			n := candidate(t, p.URL(), "only looks on")
			sights, _ := watch(t, n.Observe)
			if s := happens(t, "the database is away", sights); s.err == nil {
				t.Errorf("the database is away: %+v", s)
			}
			c.then(t, d, p, n)
			wantErr(t, "Observe", happens(t, "it is told", sights).err, c.want)
			if s, more := <-sights; more {
				t.Errorf("it goes on: %+v", s)
			}
		})
	}
}
