package pglock_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/history"
	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

const (
	electionTTL = 2 * time.Second
	electionCap = 2 * time.Second // so long new grants are held back after a restart

	// leaderless is how long there may be no leader while the database is there: until the lease of the last one has run out,
	// new grants are made, and somebody has asked; and twice as long as that, for a machine that has other things to do.
	leaderless = 3*(electionTTL+electionCap) + patience
)

// An electionRun is some nodes, each with a network of its own, on a server that is restarted.
type electionRun struct {
	seed    uint64
	rand    *rand.Rand
	server  *pgtemp.Server
	db      *pgtest.Database
	nodes   []*node
	proxies []*pgtest.Proxy
	record  *history.Recorder
	begun   chan struct{} // a term has begun; has room for one
}

func newElectionRun(t *testing.T, nodes int) *electionRun {
	t.Helper()
	seed, _ := stressSettings(t)
	e := &electionRun{seed: seed, rand: rand.New(rand.NewPCG(seed, 0)), record: history.NewRecorder("election"), begun: make(chan struct{}, 1)}
	e.server, e.db = pgtest.OwnServer(t, pgtemp.Options{Durable: true})
	e.db.Exec(t, `UPDATE pglock.guard SET cap_us = $1`, electionCap.Microseconds())
	e.db.Exec(t, history.InstallLog("pglock"))
	for i := range nodes {
		p := pgtest.NewProxy(t, e.db)
		owner := fmt.Sprint("node ", i)
		n := candidate(t, p.URL(), owner, resting(100*time.Millisecond), func(n *node) {
			n.cfg.TTL = electionTTL
			n.lead = func(r *leading) error { return e.lead(r, owner) }
		})
		e.nodes, e.proxies = append(e.nodes, n.run(t)), append(e.proxies, p)
	}
	return e
}

// lead records for how long a node leads, and trusts that it does.
func (e *electionRun) lead(r *leading, owner string) error {
	holding := e.record.Told(told(r.lease.Grant(), owner))
	defer holding.Released()
	select {
	case e.begun <- struct{}{}:
	default:
	}
	err := obedient(r)
	var lost *pglock.LostError
	if errors.As(r.lease.Err(), &lost) {
		holding.Lost(string(lost.Cause))
	}
	return err
}

// someoneLeads waits for a leader, for as long as there may be none.
func (e *electionRun) someoneLeads(t *testing.T, after string) {
	t.Helper()
	for late := time.Now().Add(leaderless); ; {
		if slices.ContainsFunc(e.nodes, func(n *node) bool { return n.IsLeader() }) {
			return
		}
		if time.Now().After(late) {
			t.Fatalf("PGLOCK_SEED=%d: nobody leads %v after %s", e.seed, leaderless, after)
		}
		select {
		case <-e.begun:
		case <-time.After(50 * time.Millisecond): // before the next look: it may have begun before
		}
	}
}

// disturb does one damage, and undoes it.
func (e *electionRun) disturb(t *testing.T) (what string) {
	t.Helper()
	i := e.rand.IntN(len(e.nodes))
	pause := between(e.rand, 100*time.Millisecond, electionTTL*3/2)
	switch p := e.rand.IntN(100); {
	case p < 25:
		mode := []pgtemp.Mode{pgtemp.Fast, pgtemp.Immediate}[e.rand.IntN(2)]
		if err := e.server.Restart(slow(t), mode); err != nil {
			t.Fatal(err)
		}
		return "a restart"
	case p < 40:
		wantErr(t, "Resign", e.nodes[i].Resign(soon(t)), nil)
		return "a resignation"
	case p < 60:
		for _, p := range e.proxies {
			p.Cut()
		}
		return "a cut of all"
	case p < 80: // the leader, if there is one
		i = max(slices.IndexFunc(e.nodes, func(n *node) bool { return n.IsLeader() }), 0)
		e.proxies[i].Stall(pgtest.Direction(e.rand.IntN(3)))
		passes(t, e.db, pause)
		e.proxies[i].Cut()
		e.proxies[i].Resume()
		return "a silent network of one"
	default:
		for _, p := range e.proxies {
			p.Refuse(true)
			p.Cut()
		}
		passes(t, e.db, pause)
		for _, p := range e.proxies {
			p.Refuse(false)
		}
		return "an outage of all networks"
	}
}

// Three nodes, while their connections are cut and held up and the server is restarted and crashes. 8 damages, 100 under
// PGLOCK_LONG=1; PGLOCK_SEED repeats the choices.
func TestUnderRandomFaultsOneLeadsAtATimeAndSoonAgain(t *testing.T) {
	t.Parallel()
	paused := watchPauses(t)
	e := newElectionRun(t, 3)
	e.someoneLeads(t, "the beginning")
	for range pgtest.Rounds(8, 100) {
		e.someoneLeads(t, e.disturb(t))
	}
	for _, n := range e.nodes { // whatever has happened so far, there is a second term
		wantErr(t, "Resign", n.Resign(soon(t)), nil)
	}
	e.someoneLeads(t, "the resignation of all")
	for _, n := range e.nodes {
		n.stop(errShutdown)
		wantErr(t, "Run", happens(t, "Run ends", n.ended), errShutdown)
	}

	h := e.record.History()
	rows, err := e.db.Conn(t).Query(t.Context(), history.SelectLog("pglock"))
	if err != nil {
		t.Fatal(err)
	}
	if h.Changes, err = history.ReadLog(rows); err != nil {
		t.Fatal(err)
	}
	rows.Close()
	if rows, err = e.db.Conn(t).Query(t.Context(), history.SelectHandOvers("pglock")); err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	if h.HandOvers, err = history.ReadHandOvers(rows); err != nil {
		t.Fatal(err)
	}
	report := history.Check(h, history.Options{RenewalTolerance: 50 * time.Millisecond, OneMachine: true})
	report.Violations = slices.DeleteFunc(report.Violations, func(v history.Violation) bool { return paused.explain(h, v) })
	t.Logf("PGLOCK_SEED=%d: %+v", e.seed, report.Stats)
	if err := errors.Join(report.Err(), report.Stats.AtLeast(history.Stats{Grants: 2, Told: 2})); err != nil {
		t.Errorf("PGLOCK_SEED=%d: %v", e.seed, err)
	}
}
