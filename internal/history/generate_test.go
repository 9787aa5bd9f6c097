package history_test

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/fencedlock/fencedlock/internal/history"
)

const (
	// Tokens and serials leave gaps, so that a fault can be planted between two of them.
	tokenStep  = 3
	serialStep = 10

	simulatedMargin = 50 * time.Millisecond // between the end of trust and the expiry
	tolerance       = 2 * time.Millisecond  // of the options that the tests check with
)

// checkOptions asks for every check there is.
func checkOptions() history.Options {
	return history.Options{
		RenewalTolerance: tolerance,
		ClockTolerance:   tolerance,
		LossNeedsProof:   func(cause string) bool { return cause != "expired" },
	}
}

// generate simulates clients that keep every guarantee, until exactly that many events have happened. The same seed
// gives the same history.
func generate(seed uint64, events int) *history.History {
	s := newSimulation(seed)
	for s.h.Len()+s.open() < events-3 { // a step and the window that it ends
		s.step()
	}
	for _, p := range s.places {
		s.leaveOpen(p)
	}
	for s.h.Len() < events {
		s.h.Writes = append(s.h.Writes, history.Write{Grant: s.places[0].past[0], Resource: "padding"})
	}
	return s.h
}

// A simulation is a database and its clients, without either: every row acts on its own at the instants it chose.
type simulation struct {
	rng          *rand.Rand
	now          history.Instant
	token        int64
	serial       int64
	acquisitions int
	places       []*place
	h            *history.History
}

// A place is one (name, slot) and the client that holds it.
type place struct {
	lock string
	slot int
	due  history.Instant // of its next action

	permits int // of slot 0

	row     history.Change
	exists  bool
	held    bool           // the holder still acts
	revoked bool           // and nobody is granted it before a token was drawn
	trust   *history.Trust // nil: nobody was told
	past    []history.Grant
	exclude []*place
}

func newSimulation(seed uint64) *simulation {
	start := history.Instant(1_790_000_000_000_000)
	s := &simulation{rng: rand.New(rand.NewPCG(seed, 1)), now: start, h: &history.History{}}
	for i := range 2 {
		s.h.Processes = append(s.h.Processes, history.Process{
			Name: fmt.Sprintf("p%d", i), Started: start.Add(-time.Duration(i+1) * time.Second).Time(),
		})
	}
	for i := range 4 {
		s.places = append(s.places, &place{lock: fmt.Sprintf("mutex-%d", i)})
	}
	for i := range 2 {
		s.places = append(s.places, &place{lock: "semaphore", slot: i + 1})
	}
	for i := range 3 { // slot 0 is the writer
		s.places = append(s.places, &place{lock: "shared", slot: i})
	}
	s.plant(&place{lock: "semaphore", permits: 2})
	writer := s.places[len(s.places)-3]
	writer.permits = -1
	s.plant(writer)
	for _, p := range s.places {
		p.due = start + history.Instant(s.rng.IntN(1_000_000))
		for _, other := range s.places {
			if other != p && other.lock == p.lock && (p.slot == 0 || other.slot == 0) {
				p.exclude = append(p.exclude, other)
			}
		}
	}
	return s
}

// step lets the place act whose turn is first.
func (s *simulation) step() {
	p := s.places[0]
	for _, other := range s.places {
		if other.due < p.due {
			p = other
		}
	}
	s.now = p.due
	switch {
	case p.held:
		s.hold(p)
	case s.free(p) && p.revoked:
		s.draw(p)
	case p.due == s.now:
		s.grant(p, s.client(p))
	}
}

// free reports whether p may be granted now, or else makes it wait. Being granted at the very instant at which the row
// becomes free is the boundary that the checker must allow.
func (s *simulation) free(p *place) bool {
	p.due = max(s.now, p.row.ExpiresAt, p.row.NotBefore)
	for _, other := range p.exclude {
		if max(other.row.ExpiresAt, other.row.NotBefore) > s.now { // ask again: it may be renewed
			p.due = max(p.due, s.now+s.soon(400*time.Millisecond)+1)
		}
	}
	return p.due == s.now
}

func (s *simulation) soon(d time.Duration) history.Instant {
	return history.Instant(s.rng.Int64N(d.Microseconds()))
}

// sometimesNow is 0 half of the time.
func (s *simulation) sometimesNow(d time.Duration) history.Instant {
	return s.soon(d) * history.Instant(s.rng.IntN(2))
}

func (s *simulation) client(p *place) string {
	// Two processes of three clients each; in most of a row's life it stays inside one process, where windows meet.
	process := 0
	if s.rng.IntN(4) == 0 {
		process = 1
	}
	return fmt.Sprintf("p%d/c%d", process, s.rng.IntN(3))
}

// clock is the instant now on the clock of a process.
func (s *simulation) clock(process string, at history.Instant) time.Duration {
	for _, p := range s.h.Processes {
		if p.Name == process {
			return at.Time().Sub(p.Started)
		}
	}
	panic("no such process: " + process)
}

func (s *simulation) log(p *place) {
	s.serial += serialStep
	p.row.Serial, p.row.RecordedAt = s.serial, s.now
	s.h.Changes = append(s.h.Changes, p.row)
}

// open counts the windows that are not in the history yet.
func (s *simulation) open() int {
	n := 0
	for _, p := range s.places {
		if p.trust != nil {
			n++
		}
	}
	return n
}
