package history

import (
	"fmt"
	"slices"
)

// A History is everything that one run left behind. The zero value is an empty history.
type History struct {
	Processes []Process
	Changes   []Change
	HandOvers []HandOver
	Trusts    []Trust
	Writes    []Write
}

// An Event is one entry of a history that a violation can name: a [Change], a [Trust] or a [Write].
type Event interface {
	fmt.Stringer
	event()
}

func (Change) event() {}
func (Trust) event()  {}
func (Write) event()  {}

// A Grant names one lease that a client was told it holds.
type Grant struct {
	Client string `json:"client,omitempty"`
	Lock   string `json:"lock"`
	Slot   int    `json:"slot,omitempty"`
	Token  int64  `json:"token"`
	// Acquisition is the id of the attempt. Where a client cannot know it, it may be empty: the token is then what
	// joins the record with the database's log.
	Acquisition string `json:"acquisition,omitempty"`
}

// String names the lock, the slot if there is one, the token and the client.
func (g Grant) String() string {
	s := slotted(g.Lock, g.Slot) + fmt.Sprintf(" token %d", g.Token)
	if g.Client != "" {
		s += " of " + g.Client
	}
	return s
}

// slotted names a lock together with its slot; slot 0 is the lock itself.
func slotted(lock string, slot int) string {
	if slot == 0 {
		return fmt.Sprintf("%q", lock)
	}
	return fmt.Sprintf("%q slot %d", lock, slot)
}

// Len is the number of events, of whatever sort.
func (h *History) Len() int {
	return len(h.Processes) + len(h.Changes) + len(h.HandOvers) + len(h.Trusts) + len(h.Writes)
}

// Add appends the events of other, say those of another process or of the database's log.
func (h *History) Add(other *History) {
	h.Processes = append(h.Processes, other.Processes...)
	h.Changes = append(h.Changes, other.Changes...)
	h.HandOvers = append(h.HandOvers, other.HandOvers...)
	h.Trusts = append(h.Trusts, other.Trusts...)
	h.Writes = append(h.Writes, other.Writes...)
}

// Clone returns a copy that shares nothing with h.
func (h *History) Clone() *History {
	return &History{
		Processes: slices.Clone(h.Processes),
		Changes:   slices.Clone(h.Changes),
		HandOvers: slices.Clone(h.HandOvers),
		Trusts:    slices.Clone(h.Trusts),
		Writes:    slices.Clone(h.Writes),
	}
}
