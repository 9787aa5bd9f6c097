package failover

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/history"
	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// A story is what happens around one event, step by step, in two installations. What comes before the split is known to the server
// that goes on after the event; the tail is not.
type story struct {
	*testing.T
	db      *pgtest.Database // on the server of now
	service *pgtest.Relay    // the address of whichever server is the primary
	sides   [2]*side         // with the guard and without
}

// A side is one of the installations, and its clients.
type side struct {
	*testing.T
	schema string
	guard  bool
	kept   bool             // the event loses nothing that was acknowledged
	db     *pgtest.Database // on the server of now
	record *history.Recorder

	url      string         // of the service
	own      *pgtest.Relay  // the way of the holder, who meets the event alone
	holder   *pglock.Client // is granted what is lost
	lost     *pglock.Lease
	trusted  *history.Holding
	renewing *pglock.Lease // lost as well
	believed *history.Holding
	survivor *pglock.Lease // of another client, and known to both servers
}

// lostGrants are more than the numbers by which a sequence is ahead of itself in the log: a standby is not ahead of these.
const lostGrants = 40

// newStory begins on a server of its own.
func newStory(t *testing.T, settings map[string]string) *story {
	t.Helper()
	d := newServer(t, long, settings)
	s := &story{T: t, db: d, service: pgtest.NewRelay(t, d.Server)}
	for i, schema := range []string{guarded, unguarded} {
		s.sides[i] = &side{T: t, schema: schema, guard: schema == guarded, db: d, record: history.NewRecorder(schema), url: s.service.URL(d)}
	}
	return s
}

func (s *story) each(f func(*side)) {
	s.Helper()
	for _, side := range s.sides {
		f(side)
	}
}

// before is what both servers will know.
func (s *story) before() {
	s.Helper()
	s.each(func(s *side) {
		var err error
		s.survivor, err = s.open("survivor").TryAcquire(soon(s.T), "survivor")
		do(s.T, "survivor", err)
		told(s.record, "survivor", s.survivor)
		s.begin()
		s.take(s.holder, "holder", "lost")
	})
}

// begin makes a holder on the server of now.
func (s *side) begin() {
	s.Helper()
	s.own = pgtest.NewRelay(s.T, s.db.Server)
	s.holder = open(s.T, s.own.URL(s.db), s.schema, "holder")
}

// open makes a client of the service.
func (s *side) open(owner string) *pglock.Client {
	s.Helper()
	return open(s.T, s.url, s.schema, owner)
}

// take is granted a lock and releases it.
func (s *side) take(c *pglock.Client, client, name string) {
	s.Helper()
	l, holding := s.grant(c, client, name)
	holding.Released()
	do(s.T, "Release", l.Release(soon(s.T)))
}

func (s *side) grant(c *pglock.Client, client, name string) (*pglock.Lease, *history.Holding) {
	s.Helper()
	l, err := c.TryAcquire(soon(s.T), name, pglock.NoRenewal())
	do(s.T, "TryAcquire by "+client, err)
	return l, told(s.record, client, l)
}

// tail is what is lost. The installation with a guard comes first: its commits are flushed, and with them all before.
func (s *story) tail() {
	s.Helper()
	s.each(func(s *side) {
		for range lostGrants {
			s.take(s.holder, "holder", "lost")
		}
		s.lost, s.trusted = s.grant(s.holder, "holder", "lost")
		s.renewing, s.believed = s.grant(s.holder, "holder", "renewing")
	})
}

// moved says which server goes on. The holder does not learn of it yet.
func (s *story) moved(to *pgtemp.Server) {
	s.Helper()
	s.db = pgtest.On(s.T, to, s.db.Name)
	for _, side := range s.sides {
		side.own.Freeze()
		side.db = s.db
	}
	s.service.To(to)
	s.service.Cut()
}

// failOver ends the primary and promotes a standby.
func (s *story) failOver(to *pgtest.Replica) {
	s.Helper()
	do(s.T, "Kill", s.db.Server.Kill())
	to.Way.Cut()
	do(s.T, "Promote", to.Server.Promote(soon(s.T)))
	s.moved(to.Server)
}

// after asks for what was lost, by a client that knows of nothing.
func (s *story) after() {
	s.Helper()
	s.each((*side).after)
}

// bumping is what is told while another session begins the hold just now: ask again.
const bumping = 50 * time.Millisecond

func (s *side) after() {
	s.Helper()
	next := s.open("next")
	asked := time.Now()
	l, err := next.TryAcquire(soon(s.T), "lost", pglock.NoRenewal())
	if !s.guard {
		s.goOn(l, err)
		return
	}
	var back *pglock.HeldBackError
	for errors.As(err, &back) && back.Remaining <= bumping {
		asked = time.Now()
		l, err = next.TryAcquire(soon(s.T), "lost", pglock.NoRenewal())
	}
	if !errors.As(err, &back) {
		s.Fatalf("TryAcquire of a lock that was lost: %v, %v, want it held back", l, err)
	}
	if asked.Add(back.Remaining).Before(s.lost.Deadline()) {
		s.Errorf("held back for %v, and %v is trusted for %v", back.Remaining, s.lost, time.Until(s.lost.Deadline()))
	}
	s.noLeaseIsTooLong()
	do(s.T, "Renew of what was not lost, during the hold", renew(s.T, s.survivor))
	if s.kept {
		s.settleKept(next)
	} else {
		s.settle(next)
	}
}

// goOn uses what was granted without a guard, while its last holder trusts it.
func (s *side) goOn(l *pglock.Lease, err error) {
	s.Helper()
	do(s.T, "TryAcquire where there is no guard", err)
	holding := told(s.record, "next", l)
	s.takeMany(s.open("next"))
	holding.Released()
	do(s.T, "Release where there is no guard", l.Release(soon(s.T)))
}

// noLeaseIsTooLong: whatever clock has written them.
func (s *side) noLeaseIsTooLong() {
	s.Helper()
	if pgtest.Query[bool](s.T, s.db, `SELECT EXISTS (SELECT FROM pglock.leases WHERE expires_at > clock_timestamp() + ttl)`) {
		s.Error("a lease is trusted for longer than its TTL")
	}
}

// settle is what comes once the holder has let go and an operator has ended the hold.
func (s *side) settle(next *pglock.Client) {
	s.Helper()
	gone, cancel := context.WithCancel(s.Context())
	cancel()
	s.trusted.Released()
	s.lost.Release(gone) //nolint:errcheck // it cannot be sent before the holder has found the new server
	s.db.Exec(s.T, `SELECT pglock.end_hold()`)
	s.takeMany(next)
	successor, holding := s.grant(next, "next", "lost")
	s.rejoin()
	wantErr(s.T, "Renew of what was lost", renew(s.T, s.renewing), pglock.ErrLost)
	s.believed.Lost("renewal refused")
	do(s.T, "Renew of its successor", renew(s.T, successor))
	holding.Released()
	do(s.T, "Release of its successor", successor.Release(soon(s.T)))
	do(s.T, "Renew of what was not lost", renew(s.T, s.survivor))
}

// settleKept is what comes where nothing was lost: the holder comes back to its leases.
func (s *side) settleKept(next *pglock.Client) {
	s.Helper()
	s.rejoin()
	do(s.T, "Renew of what was kept", renew(s.T, s.renewing))
	s.db.Exec(s.T, `SELECT pglock.end_hold()`)
	_, err := next.TryAcquire(soon(s.T), "lost")
	wantErr(s.T, "TryAcquire of what was kept", err, pglock.ErrHeld)
	s.trusted.Released()
	s.believed.Released()
	do(s.T, "Release of what was kept", errors.Join(s.lost.Release(soon(s.T)), s.renewing.Release(soon(s.T))))
	s.take(next, "next", "lost")
	s.takeMany(next)
}

// rejoin lets the holder see the server that goes on.
func (s *side) rejoin() {
	s.own.To(s.db.Server)
	s.own.Cut()
}

// takeMany uses some tokens.
func (s *side) takeMany(next *pglock.Client) {
	s.Helper()
	for range 4 {
		s.take(next, "next", "new")
	}
}

// check judges: with the guard nothing may be found, and without it what the event does.
func (s *story) check(harm ...history.Kind) {
	s.Helper()
	for _, side := range s.sides {
		report := history.Check(side.record.History(), history.Options{LogLost: true})
		if side.guard {
			if err := report.Err(); err != nil {
				s.Error(err)
			}
			continue
		}
		for _, kind := range harm {
			if !slices.ContainsFunc(report.Violations, func(v history.Violation) bool { return v.Kind == kind }) {
				s.Errorf("the event shows no %s where there is no guard: it proves nothing", kind)
			}
		}
	}
}
