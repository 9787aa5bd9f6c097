package history_test

import (
	"math/rand/v2"
	"strings"
	"time"

	"github.com/fencedlock/fencedlock/internal/history"
)

// nextWindow finds, after a window that its holder released, the next one of the same mutex and process.
func nextWindow(h *history.History, i int) (history.Trust, bool) {
	w := h.Trusts[i]
	if w.Open || w.Cause != "" || !strings.HasPrefix(w.Lock, "mutex") {
		return history.Trust{}, false
	}
	for _, next := range h.Trusts[i+1:] {
		if next.Lock == w.Lock && next.Process == w.Process && next.From >= w.Until {
			return next, true
		}
	}
	return history.Trust{}, false
}

func plantTrustOverlap(h *history.History, rng *rand.Rand) (history.Event, bool) {
	i := rng.IntN(len(h.Trusts))
	next, ok := nextWindow(h, i)
	if !ok {
		return nil, false
	}
	h.Trusts[i].Until = next.From + 1
	return h.Trusts[i], true
}

func plantEndlessTrust(h *history.History, rng *rand.Rand) (history.Event, bool) {
	i := rng.IntN(len(h.Trusts))
	if _, ok := nextWindow(h, i); !ok {
		return nil, false
	}
	h.Trusts[i].Open = true
	return h.Trusts[i], true
}

func plantUngrantedToken(h *history.History, rng *rand.Rand) (history.Event, bool) {
	i := rng.IntN(len(h.Trusts))
	h.Trusts[i].Token++
	return h.Trusts[i], true
}

func plantTokenOfAnother(h *history.History, rng *rand.Rand) (history.Event, bool) {
	i, j := rng.IntN(len(h.Trusts)), rng.IntN(len(h.Trusts))
	a, b := h.Trusts[i], h.Trusts[j]
	if a.Lock != b.Lock || a.Slot != b.Slot || a.Token == b.Token {
		return nil, false
	}
	h.Trusts[i].Token = b.Token
	return h.Trusts[i], true
}

func plantFalseLoss(h *history.History, rng *rand.Rand) (history.Event, bool) {
	i := rng.IntN(len(h.Trusts))
	w := h.Trusts[i]
	if w.Open || w.Cause != "" || w.Until-w.From < 10*time.Millisecond {
		return nil, false
	}
	h.Trusts[i].Until, h.Trusts[i].Cause = w.From+time.Microsecond, "taken"
	return h.Trusts[i], true
}

// laterWrite chooses an accepted write and one of an earlier grant of the same resource.
func laterWrite(h *history.History, rng *rand.Rand) (later, earlier history.Write, ok bool) {
	later, earlier = h.Writes[rng.IntN(len(h.Writes))], h.Writes[rng.IntN(len(h.Writes))]
	ok = later.Accepted && earlier.Accepted && later.Resource == earlier.Resource && earlier.Token < later.Token
	return later, earlier, ok
}

func plantStaleWrite(h *history.History, rng *rand.Rand) (history.Event, bool) {
	later, stale, ok := laterWrite(h, rng)
	if !ok {
		return nil, false
	}
	stale.Serial = later.Serial + 1
	h.Writes = append(h.Writes, stale)
	return stale, true
}

func plantSupersededWrite(h *history.History, rng *rand.Rand) (history.Event, bool) {
	later, superseded, ok := laterWrite(h, rng)
	if !ok {
		return nil, false
	}
	superseded.Serial, superseded.Token = later.Serial+1, later.Token
	h.Writes = append(h.Writes, superseded)
	return superseded, true
}

func plantUngrantedWrite(h *history.History, rng *rand.Rand) (history.Event, bool) {
	w := h.Writes[rng.IntN(len(h.Writes))]
	if !w.Accepted {
		return nil, false
	}
	w.Serial, w.Token = w.Serial+1, w.Token+1
	for _, other := range h.Writes { // it would make a later write of its own grant look stale
		if other.Accepted && other.Resource == w.Resource && other.Serial > w.Serial && other.Token < w.Token {
			return nil, false
		}
	}
	h.Writes = append(h.Writes, w)
	return w, true
}
