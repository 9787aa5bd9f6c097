package pglock_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/history"
)

// Half of the margin that the TTLs of the stress have, and twice as much: a pause longer than the first, less than the second
// before an overlap of trust windows, explains it.
const (
	longPause = 25 * time.Millisecond
	pauseSpan = 100 * time.Millisecond
)

// pauses knows when this process did not get to run. A client that is paused for longer than its margin cannot end its lease
// in time; that is no fault of it, and the fence is there for it.
type pauses struct {
	mu   sync.Mutex
	seen []pause
}

type pause struct{ from, until time.Time }

// watchPauses looks at the clock all the time, until the test ends.
func watchPauses(t *testing.T) *pauses {
	t.Helper()
	p := &pauses{}
	stop, stopped := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stop); <-stopped })
	go func() {
		defer close(stopped)
		for last := time.Now(); ; last = time.Now() {
			select {
			case <-time.After(time.Millisecond):
			case <-stop:
				return
			}
			if now := time.Now(); now.Sub(last) > longPause {
				p.mu.Lock()
				p.seen = append(p.seen, pause{last, now})
				p.mu.Unlock()
			}
		}
	}()
	return p
}

// explain says whether a violation is no more than a client that was paused.
func (p *pauses) explain(h *history.History, v history.Violation) bool {
	if v.Kind != history.OverlappingTrust {
		return false
	}
	later, earlier := v.Events[0].(history.Trust), v.Events[1].(history.Trust)
	from := started(h, later).Add(later.From - pauseSpan)
	until := started(h, earlier).Add(earlier.Until)
	p.mu.Lock()
	defer p.mu.Unlock()
	return !earlier.Open && slices.ContainsFunc(p.seen, func(s pause) bool { return s.until.After(from) && s.from.Before(until) })
}

func started(h *history.History, t history.Trust) time.Time {
	i := slices.IndexFunc(h.Processes, func(p history.Process) bool { return p.Name == t.Process })
	return h.Processes[i].Started
}
