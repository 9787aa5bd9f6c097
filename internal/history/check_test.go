package history_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/fencedlock/fencedlock/internal/history"
)

func TestEveryKindIsPlanted(t *testing.T) {
	for _, kind := range history.Kinds() {
		if !slices.ContainsFunc(plants, func(p plant) bool { return p.kind == kind }) {
			t.Errorf("no test plants a violation of the kind %q", kind)
		}
	}
}

func TestOnePlantedEventIsFound(t *testing.T) {
	base := generate(baseSeed, baseEvents)
	for _, p := range plants {
		t.Run(p.how, func(t *testing.T) {
			for place := range uint64(3) {
				h, event := planted(t, base, p, rand.New(rand.NewPCG(place, 2)))
				mustFind(t, h, p.kind, event)
			}
		})
	}
}

// planted returns a copy of a history with one event of a fault in it.
func planted(t *testing.T, base *history.History, p plant, rng *rand.Rand) (*history.History, history.Event) {
	t.Helper()
	h, event, ok := tryPlant(base, p, rng)
	if !ok {
		t.Fatalf("no place found for %s", p.how)
	}
	return h, event
}

func tryPlant(base *history.History, p plant, rng *rand.Rand) (*history.History, history.Event, bool) {
	h := base.Clone()
	for range 3000 { // the chance of one try is small where two events must suit each other
		if event, ok := p.put(h, rng); ok {
			return h, event, true
		}
	}
	return nil, nil, false
}

// mustFind wants violations of that kind alone, each with that event in it. One event can collide with several others.
func mustFind(t *testing.T, h *history.History, kind history.Kind, event history.Event) {
	t.Helper()
	violations := history.Check(h, checkOptions()).Violations
	if len(violations) == 0 {
		t.Errorf("%v was planted and not found, want %q", event, kind)
	}
	for _, v := range violations {
		if v.Kind != kind || !slices.Contains(v.Events, event) {
			t.Errorf("%v was planted: found %v, want %q and the planted event named", event, v, kind)
			return
		}
	}
}

// The property behind all of it: whatever the clients did, a valid history passes and one planted event is found.
func TestRandomHistories(t *testing.T) {
	for seed := range uint64(15) {
		base := generate(seed, 1500)
		if err := history.Check(base, checkOptions()).Err(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		rng := rand.New(rand.NewPCG(seed, 3))
		for _, p := range plants {
			h, event := planted(t, base, p, rng)
			mustFind(t, h, p.kind, event)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func FuzzPlantedEventIsFound(f *testing.F) {
	for i := range plants {
		f.Add(uint64(i), uint64(i), uint8(i))
	}
	f.Fuzz(func(t *testing.T, seed, place uint64, which uint8) {
		base := generate(seed, 1500)
		if err := history.Check(base, checkOptions()).Err(); err != nil {
			t.Fatal(err)
		}
		p := plants[int(which)%len(plants)]
		h, event, ok := tryPlant(base, p, rand.New(rand.NewPCG(place, 4)))
		if !ok {
			t.Skip("no place for it in so short a history")
		}
		mustFind(t, h, p.kind, event)
	})
}

func BenchmarkCheck(b *testing.B) {
	h := generate(baseSeed, 1_000_000)
	for b.Loop() {
		if report := history.Check(h, checkOptions()); len(report.Violations) > 0 {
			b.Fatal(report.Err())
		}
	}
	b.ReportMetric(float64(h.Len())*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}
