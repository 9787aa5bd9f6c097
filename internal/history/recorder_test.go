package history_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencedlock/fencedlock/internal/history"
)

func TestRecorderKeepsTheWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := history.NewRecorder("p")
		g := history.Grant{Client: "c", Lock: "x", Slot: 2, Token: 7, Acquisition: "a7"}

		time.Sleep(3 * time.Second)
		kept, lost, nameless, open := rec.Told(g), rec.Told(g), rec.Told(g), rec.Told(g)
		time.Sleep(time.Second)
		kept.Released()
		kept.Lost("too late to count")
		lost.Lost("taken")
		nameless.Lost("")
		_ = open

		want := []history.Trust{
			{Grant: g, Process: "p", From: 3 * time.Second, Until: 4 * time.Second},
			{Grant: g, Process: "p", From: 3 * time.Second, Until: 4 * time.Second, Cause: "taken"},
			{Grant: g, Process: "p", From: 3 * time.Second, Until: 4 * time.Second, Cause: "unknown"},
			{Grant: g, Process: "p", From: 3 * time.Second, Open: true},
		}
		for i, got := range rec.History().Trusts {
			if got != want[i] {
				t.Errorf("window %d = %+v, want %+v", i, got, want[i])
			}
		}
	})
}

func TestRecorderKeepsWritesAndHandOvers(t *testing.T) {
	rec := history.NewRecorder("p")
	g := history.Grant{Lock: "x", Token: 7}
	handOver := history.HandOver{Lock: "x", From: "a7", To: "a8"}

	rec.Accepted(g, "r", 5)
	rec.Refused(g, "r")
	rec.HandingOver(handOver)
	h := rec.History()
	rec.Refused(g, "r") // after the copy was taken

	want := []history.Write{{Grant: g, Resource: "r", Accepted: true, Serial: 5}, {Grant: g, Resource: "r"}}
	if len(h.Writes) != 2 || h.Writes[0] != want[0] || h.Writes[1] != want[1] {
		t.Errorf("writes = %v, want %v", h.Writes, want)
	}
	if len(h.HandOvers) != 1 || h.HandOvers[0] != handOver {
		t.Errorf("hand-overs = %v, want %v", h.HandOvers, handOver)
	}
	if len(h.Processes) != 1 || h.Processes[0].Name != "p" || time.Since(h.Processes[0].Started) > time.Minute {
		t.Errorf("processes = %v", h.Processes)
	}
}

// What one client records right before a mutex is passed on and the next one right after it never overlaps.
func TestRecorderIsSafeForConcurrentUse(t *testing.T) {
	const clients, turns = 8, 50
	rec := history.NewRecorder("p")
	var mutex sync.Mutex
	var log history.History
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for range turns {
				mutex.Lock()
				n := int64(len(log.Changes) + 1)
				at := history.InstantOf(time.Now())
				g := history.Grant{Client: fmt.Sprint(c), Lock: "x", Token: n, Acquisition: fmt.Sprint("a", n)}
				granted := history.Change{
					Serial: n, Lock: "x", Token: n, Acquisition: g.Acquisition, GrantedAt: at, ExpiresAt: at.Add(time.Hour), RecordedAt: at,
				}
				held := rec.Told(g)
				rec.Accepted(g, "r", n)
				held.Released()
				released := granted
				released.Serial, released.ExpiresAt, released.RecordedAt = n+1, 0, history.InstantOf(time.Now())
				log.Changes = append(log.Changes, granted, released)
				mutex.Unlock()
				rec.Refused(g, "r")
			}
		})
	}
	wg.Wait()

	log.Add(rec.History())
	report := history.Check(&log, history.Options{})

	if err := report.Err(); err != nil {
		t.Error(err)
	}
	const all = clients * turns
	if err := report.Stats.AtLeast(history.Stats{Told: all, WritesAccepted: all, WritesRefused: all}); err != nil {
		t.Error(err)
	}
}
