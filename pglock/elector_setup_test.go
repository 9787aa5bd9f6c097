package pglock_test

import (
	"context"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// A node is a candidate in the election of a test, with a client of its own.
type node struct {
	*pglock.Elector
	client *pglock.Client
	terms  chan *leading               // each that began
	stop   func(cause error)           // ends the ctx of Run
	ended  <-chan error                // what Run returned
	lead   func(r *leading) error      // what lead does once it was told of
	cfg    pglock.Config               // of the client
	elect  func(*pglock.ElectorConfig) // changes the elector's
}

// A leading is one call of lead.
type leading struct {
	ctx    context.Context
	lease  *pglock.Lease
	answer chan error    // what lead is to return
	over   chan struct{} // closed when the test is
}

// obedient is a lead that returns when it is told to, by the test or by its context.
func obedient(r *leading) error {
	select {
	case err := <-r.answer:
		return err
	case <-r.ctx.Done():
		return r.ctx.Err()
	}
}

// stubborn is one that does not look at its context.
func stubborn(r *leading) error {
	select {
	case err := <-r.answer:
		return err
	case <-r.over:
		return nil
	}
}

// candidate makes a node that does not run yet.
func candidate(t testing.TB, url, owner string, change ...func(n *node)) *node {
	t.Helper()
	n := &node{terms: make(chan *leading, 1000), lead: obedient, cfg: pglock.Config{Owner: owner}}
	for _, f := range change {
		f(n)
	}
	n.client = open(t, url, n.cfg)
	ec := pglock.ElectorConfig{}
	if n.elect != nil {
		n.elect(&ec)
	}
	var err error
	if n.Elector, err = pglock.NewElector(n.client, "leader", ec); err != nil {
		t.Fatal(err)
	}
	return n
}

// run begins to run a node, until the test ends at the latest.
func (n *node) run(t testing.TB) *node {
	t.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	n.stop = cancel
	done, over := make(chan struct{}), make(chan struct{})
	ended := make(chan error, 1)
	n.ended = ended
	go func() {
		defer close(done)
		ended <- n.Run(ctx, func(ctx context.Context, l *pglock.Lease) error {
			r := &leading{ctx: ctx, lease: l, answer: make(chan error, 1), over: over}
			n.terms <- r
			return n.lead(r)
		})
	}()
	t.Cleanup(func() { close(over); cancel(nil); <-done })
	return n
}

// elected waits for a node to lead.
func (n *node) elected(t testing.TB) *leading {
	t.Helper()
	return happens(t, "the node is elected", n.terms)
}

// follows waits until a node waits for the leader, and checks that it does not lead.
func (n *node) follows(t testing.TB) {
	t.Helper()
	queued(t, n.client, "leader", 1)
	if n.IsLeader() || len(n.terms) > 0 {
		t.Error("it leads beside another")
	}
}

// leaderAnd is two nodes, of which the first leads and the second waits. The first is in no hurry to lead again.
func leaderAnd(t testing.TB, d *pgtest.Database, change ...func(n *node)) (a *node, r *leading, b *node) {
	t.Helper()
	a = candidate(t, d.URL, "a", append([]func(*node){resting(time.Minute)}, change...)...).run(t)
	r = a.elected(t)
	b = candidate(t, d.URL, "b").run(t)
	b.follows(t)
	return a, r, b
}

func resting(d time.Duration) func(n *node) {
	return func(n *node) { n.elect = func(c *pglock.ElectorConfig) { c.Pause = d } }
}

func isStubborn(n *node) { n.lead = stubborn }

func renewsOften(n *node) { n.cfg.RenewEvery = 100 * time.Millisecond }
