package history_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/fencedlock/fencedlock/internal/history"
)

// plant makes the row of p, as the protocol does before the first grant.
func (s *simulation) plant(p *place) {
	p.row, p.exists = history.Change{Lock: p.lock, Slot: p.slot, Permits: p.permits}, true
	s.log(p)
}

// grant gives p to a client, which is told unless its reply is lost.
func (s *simulation) grant(p *place, client string) {
	if !p.exists {
		s.plant(p)
	}
	s.token += tokenStep
	s.acquisitions++
	ttl := time.Second + time.Duration(s.rng.IntN(2000))*time.Millisecond
	p.row = history.Change{
		Lock: p.lock, Slot: p.slot, Token: s.token, Acquisition: fmt.Sprintf("a-%05d", s.acquisitions),
		Owner: client, GrantedAt: s.now, ExpiresAt: s.now.Add(ttl), Permits: p.permits,
	}
	s.log(p)
	g := history.Grant{Client: client, Lock: p.lock, Slot: p.slot, Token: s.token, Acquisition: p.row.Acquisition}
	p.past = append(p.past, g)
	if s.rng.IntN(8) == 0 {
		p.due = p.row.ExpiresAt + s.sometimesNow(time.Second)
		return
	}
	process, _, _ := strings.Cut(client, "/")
	p.held = true
	p.trust = &history.Trust{
		Grant: g, Process: process, From: s.clock(process, s.now+s.sometimesNow(500*time.Microsecond)),
	}
	p.due = s.now + 1000 + s.soon(ttl/4)
}

// hold lets the holder of p do one thing.
func (s *simulation) hold(p *place) {
	if s.now+300_000 > p.row.ExpiresAt {
		s.renew(p)
		return
	}
	switch n := s.rng.IntN(100); {
	case n < 35:
		s.renew(p)
	case n < 60:
		s.release(p)
	case n < 72:
		s.distrust(p, p.row.ExpiresAt.Add(-simulatedMargin), "expired")
		p.due = p.row.ExpiresAt + s.sometimesNow(time.Second)
	case n < 75:
		s.remove(p)
	case n < 80:
		s.revoke(p)
	case n < 86 && p.slot == 0 && p.lock != "shared":
		s.handOver(p)
	default:
		s.write(p)
	}
}

func (s *simulation) renew(p *place) {
	p.row.ExpiresAt = max(p.row.ExpiresAt+1, s.now.Add(time.Second)+s.soon(2*time.Second))
	s.log(p)
	p.due = s.now + 1 + s.soon(500*time.Millisecond)
}

func (s *simulation) release(p *place) {
	s.distrust(p, s.now-s.sometimesNow(300*time.Microsecond), "")
	p.row.ExpiresAt = 0
	if s.rng.IntN(5) == 0 { // hold at least
		p.row.NotBefore = s.now + s.soon(time.Second)
	}
	s.log(p)
	p.due = s.now + s.sometimesNow(100*time.Millisecond)
}

// remove deletes the live row by hand. Its holder hears of it at its next renewal, when somebody else may have the lock.
func (s *simulation) remove(p *place) {
	s.distrust(p, s.now+100+s.soon(300*time.Millisecond), "taken")
	p.row.Removed = true
	s.log(p)
	p.row, p.exists, p.revoked = history.Change{}, false, false
	p.due = s.now + s.soon(100*time.Millisecond)
}

// revoke refuses further renewals; the lease runs out, and then a token is drawn, unless somebody was granted it before.
func (s *simulation) revoke(p *place) {
	s.acquisitions++
	p.row.Acquisition, p.revoked = fmt.Sprintf("r-%05d", s.acquisitions), s.rng.IntN(3) > 0
	s.distrust(p, s.now+s.soon(100*time.Millisecond), "revoked")
	if s.rng.IntN(3) == 0 { // it is to have a grace period
		p.row.NotBefore = p.row.ExpiresAt + s.sometimesNow(100*time.Millisecond)
	}
	s.log(p)
	p.due = p.row.ExpiresAt
}

// draw makes what was written under the last grant stale.
func (s *simulation) draw(p *place) {
	s.token += tokenStep
	p.revoked, p.row.Token, p.row.GrantedAt = false, s.token, s.now
	s.log(p)
	p.due = s.now + s.sometimesNow(100*time.Millisecond)
}

// handOver gives the live lease to another client of the process, which may begin at the instant at which this one ends.
func (s *simulation) handOver(p *place) {
	s.h.HandOvers = append(s.h.HandOvers, history.HandOver{
		Lock: p.lock, Slot: p.slot, From: p.row.Acquisition, To: fmt.Sprintf("a-%05d", s.acquisitions+1),
	})
	process := p.trust.Process
	s.distrust(p, s.now, "")
	s.grant(p, fmt.Sprintf("%s/c%d", process, s.rng.IntN(3)))
}

// write writes under the lease, or lets a former holder try.
func (s *simulation) write(p *place) {
	p.due = s.now + s.soon(100*time.Millisecond)
	w := history.Write{Grant: p.trust.Grant, Resource: fmt.Sprintf("%s/%d", p.lock, p.slot)}
	if s.rng.IntN(4) == 0 {
		w.Grant = p.past[s.rng.IntN(len(p.past))]
	} else {
		s.serial += serialStep
		w.Accepted, w.Serial = true, s.serial
	}
	s.h.Writes = append(s.h.Writes, w)
}

// distrust ends the trust in p's grant, at an instant that may lie ahead.
func (s *simulation) distrust(p *place, at history.Instant, cause string) {
	p.trust.Until = max(p.trust.From, s.clock(p.trust.Process, at))
	p.trust.Cause = cause
	s.h.Trusts = append(s.h.Trusts, *p.trust)
	p.trust, p.held = nil, false
}

// leaveOpen records a window that the end of the run leaves open.
func (s *simulation) leaveOpen(p *place) {
	if p.trust != nil {
		p.trust.Open = true
		s.h.Trusts = append(s.h.Trusts, *p.trust)
		p.trust = nil
	}
}
