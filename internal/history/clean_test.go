package history_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/fencedlock/fencedlock/internal/history"
)

const (
	baseSeed   = 7
	baseEvents = 10_000
)

// plenty is what the base history must have of everything, or it would prove nothing.
var plenty = history.Stats{
	Grants: 900, Takeovers: 200, HandOvers: 20, Renewals: 500, Releases: 300, Revocations: 20, Removals: 20, Told: 700, Losses: 100,
	WritesAccepted: 200, WritesRefused: 50,
}

func TestCleanHistoryHasNoViolation(t *testing.T) {
	h := generate(baseSeed, baseEvents)

	if h.Len() != baseEvents {
		t.Errorf("the history has %d events, want %d", h.Len(), baseEvents)
	}
	for _, oneMachine := range []bool{false, true} {
		opts := checkOptions()
		opts.OneMachine = oneMachine
		report := history.Check(h, opts)
		if err := report.Err(); err != nil {
			t.Errorf("one machine %v: %v", oneMachine, err)
		}
		if err := report.Stats.AtLeast(plenty); err != nil {
			t.Errorf("one machine %v: %v", oneMachine, err)
		}
	}
}

// A clean history proves little if nothing in it comes close to a fault.
func TestCleanHistoryMeetsTheBoundaries(t *testing.T) {
	h := generate(baseSeed, baseEvents)
	var atExpiry, atNotBefore, atTrustEnd int

	for _, c := range consecutive(h) {
		if c.next.GrantedAt == c.before.ExpiresAt {
			atExpiry++
		}
		if c.next.GrantedAt == c.before.NotBefore {
			atNotBefore++
		}
	}
	ends := make(map[trustEdge]bool)
	for _, w := range h.Trusts {
		ends[trustEdge{w.Process, w.Lock, w.Slot, int64(w.Until)}] = true
	}
	for _, w := range h.Trusts {
		if ends[trustEdge{w.Process, w.Lock, w.Slot, int64(w.From)}] && w.From != w.Until {
			atTrustEnd++
		}
	}

	if atExpiry < 20 || atNotBefore < 20 || atTrustEnd < 20 {
		t.Errorf("grants at the expiry %d, at not_before %d, windows that begin where one ends %d; want 20 of each",
			atExpiry, atNotBefore, atTrustEnd)
	}
}

type trustEdge struct {
	process, lock string
	slot          int
	at            int64
}

func TestCheckLeavesTheHistoryAlone(t *testing.T) {
	h := generate(baseSeed, 500)
	h.Changes[3], h.Changes[40] = h.Changes[40], h.Changes[3] // so that there is something to sort
	want := encode(t, h)

	report := history.Check(h, checkOptions())

	if err := report.Err(); err != nil {
		t.Errorf("the order of the entries mattered: %v", err)
	}
	if !bytes.Equal(encode(t, h), want) {
		t.Error("Check changed the history")
	}
}

func TestHistorySurvivesAFile(t *testing.T) {
	h := generate(baseSeed, baseEvents)
	name := filepath.Join(t.TempDir(), "history.jsonl")
	if err := os.WriteFile(name, encode(t, h), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	got, err := history.Read(f)
	if err != nil {
		t.Fatal(err)
	}

	if !bytes.Equal(encode(t, got), encode(t, h)) {
		t.Error("the history that was read is not the one that was written")
	}
	if err := history.Check(got, checkOptions()).Err(); err != nil {
		t.Error(err)
	}
}

func encode(t *testing.T, h *history.History) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := h.Write(&buf); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}
