package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"slices"
	"time"
)

// A size is how much is measured.
type size struct {
	rounds     int           // repeats of what is short
	slice      time.Duration // of one system's turn at throughput
	callers    int           // goroutines or processes at one contended lock
	inside     contention    // in one process
	across     contention    // of processes
	handOffs   int           // of each system, in all
	leases     int           // held at once
	heldTTL    time.Duration // of those; they are renewed every third of it
	holding    time.Duration
	waiters    int
	polls      int
	crashes    int
	fastWaking bool // for the smoke test: no wait for a client to have begun listening
}

// A contention is how long one system's turn at a contended lock lasts, after a time to warm up, and how often it is repeated. Where
// it is short, chance has a large part in who gets how much.
type contention struct {
	warm, lasts time.Duration
	rounds      int
}

var (
	full = size{
		rounds: 15, slice: 400 * time.Millisecond, callers: 16,
		inside: contention{time.Second, 3 * time.Second, 7}, across: contention{2 * time.Second, 6 * time.Second, 5},
		handOffs: 300, leases: 10_000, heldTTL: usualTTL, holding: 60 * time.Second, waiters: 1000, polls: 2000, crashes: 10,
	}
	quick = size{
		rounds: 7, slice: 200 * time.Millisecond, callers: 16,
		inside: contention{300 * time.Millisecond, 700 * time.Millisecond, 3}, across: contention{time.Second, 3 * time.Second, 2},
		handOffs: 40, leases: 10_000, heldTTL: usualTTL, holding: 30 * time.Second, waiters: 1000, polls: 1000, crashes: 4,
	}
	smoke = size{
		rounds: 1, slice: 20 * time.Millisecond, callers: 3,
		inside: contention{0, 100 * time.Millisecond, 1}, across: contention{0, 100 * time.Millisecond, 1},
		handOffs: 2, leases: 100, heldTTL: 6 * time.Second, holding: 3 * time.Second, waiters: 20, polls: 20, crashes: 1, fastWaking: true,
	}
)

// A bench is one run.
type bench struct {
	size
	mode    string
	out     io.Writer
	began   time.Time
	seed    uint64 // of the order of the turns and the length of pauses
	random  *rand.Rand
	servers map[string]*server
	missing []string // servers that are not there, with the reason
	failed  error    // what is installed and did not work
}

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.out, "%7.1f s  %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...))
}

// start starts the servers that are installed and sets up the systems on them. It fails only without PostgreSQL.
func (b *bench) start(ctx context.Context) error {
	b.servers = map[string]*server{}
	for _, s := range servers {
		started, err := s.start(ctx)
		if err == nil {
			err = setUp(ctx, started)
		}
		switch {
		case err == nil:
			b.servers[s.name] = started
			b.say("%s %s started: %s", s.name, started.version, started.settings)
			continue
		case s.name == onPostgres || ctx.Err() != nil:
			return err
		case errors.Is(err, exec.ErrNotFound):
			b.missing = append(b.missing, fmt.Sprintf("%s is not installed, and left out: %v", s.name, err))
		default:
			b.missing = append(b.missing, fmt.Sprintf("%s did not start, and is left out: %s", s.name, oneLine(err)))
			b.failed = errors.Join(b.failed, err)
		}
		b.say("%s", b.missing[len(b.missing)-1])
	}
	return nil
}

func setUp(ctx context.Context, s *server) error {
	for _, system := range systems() {
		if system.On == s.name && system.Setup != nil && system != oursFair { // which shares the schema
			if err := system.Setup(ctx, s.url); err != nil {
				s.stop()
				return fmt.Errorf("%s: %w", system.Name, err)
			}
		}
	}
	return nil
}

func (b *bench) stop() {
	for _, s := range b.servers {
		s.stop()
	}
}

func (b *bench) postgres() *postgres { return b.servers[onPostgres].postgres }

// contender enters a system in a question. It is nil if its server is not there.
func (b *bench) contender(s *System, label string) []contender {
	on := b.servers[s.On]
	if on == nil {
		return nil
	}
	ttl := s.TTL
	if ttl == 0 {
		ttl = usualTTL
	}
	return []contender{{Label: label, System: s.Name, URL: on.url, TTL: ttl}}
}

// contenders are all systems that are wanted and there, and the first of them once more, as a control.
func (b *bench) contenders(control *System, want func(*System) bool) (who []contender) {
	for _, s := range systems() {
		if want(s) {
			who = append(who, b.contender(s, s.Name)...)
		}
	}
	return append(who, b.contender(control, again(control))...)
}

// again is the label of a control: a system that is measured once more, as if it were another.
func again(s *System) string { return s.Name + ", again" }

func isLock(s *System) bool { return s.Kind != floor }

// roundLimit is when a system has failed.
const roundLimit = 90 * time.Second

// interleave gives each contender a turn in each round, in an order of its own: what disturbs the machine for a while disturbs all.
// One that fails is left out from then on. An error means that the run is to end.
func (b *bench) interleave(ctx context.Context, t *table, rounds int, who []contender, turn func(context.Context, contender, int) error) error {
	for round := range rounds {
		order := slices.Clone(who)
		b.random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, c := range order {
			if t.failed[c.Label] == nil {
				b.attempt(ctx, t, c, func(ctx context.Context) error { return turn(ctx, c, round) })
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		b.say("  round %d of %d", round+1, rounds)
	}
	t.sort(who)
	return nil
}

// attempt notes a failure of a contender.
func (b *bench) attempt(ctx context.Context, t *table, c contender, f func(context.Context) error) {
	limited, cancel := context.WithTimeoutCause(ctx, roundLimit, fmt.Errorf("not done after %v", roundLimit))
	defer cancel()
	if err := f(limited); err != nil && ctx.Err() == nil {
		t.failed[c.Label] = err
		b.say("  %s failed: %s", c.Label, oneLine(err))
	}
}

// sort puts the rows in the order of the contenders.
func (t *table) sort(who []contender) {
	place := map[string]int{}
	for i, c := range who {
		place[c.Label] = i
	}
	slices.SortStableFunc(t.labels, func(a, b string) int { return place[a] - place[b] })
}
