package history_test

import (
	"math/rand/v2"

	"github.com/fencedlock/fencedlock/internal/history"
)

func plantOverlap(h *history.History, rng *rand.Rand) (history.Event, bool) {
	s, ok := choose(h, rng, func(s succession) bool {
		return s.mutex() && s.takeover() && s.before.NotBefore < s.before.ExpiresAt
	})
	if !ok {
		return nil, false
	}
	h.Changes[s.at].GrantedAt = s.before.ExpiresAt - 1
	return h.Changes[s.at], true
}

func plantReaderUnderWriter(h *history.History, rng *rand.Rand) (history.Event, bool) {
	s, ok := choose(h, rng, func(s succession) bool {
		return s.next.Lock == "shared" && s.next.Slot == 0 && s.next.Acquisition != "" && s.before.Token != s.next.Token && !isRevocation(s.next)
	})
	if !ok {
		return nil, false
	}
	g := s.next // in a slot that nobody uses otherwise
	g.Slot, g.Token, g.Acquisition, g.ExpiresAt = 9, g.Token+1, "planted", g.GrantedAt+1
	return insert(h, s.at, g), true
}

func plantEarlyDraw(h *history.History, rng *rand.Rand) (history.Event, bool) {
	s, ok := choose(h, rng, func(s succession) bool {
		return s.next.Lock != "shared" && isRevocation(s.next) && s.next.Token != s.before.Token && s.before.NotBefore < s.before.ExpiresAt
	})
	if !ok {
		return nil, false
	}
	h.Changes[s.at].GrantedAt = s.before.ExpiresAt - 1
	return h.Changes[s.at], true
}

func plantPermitTooMany(h *history.History, rng *rand.Rand) (history.Event, bool) {
	s, ok := choose(h, rng, func(s succession) bool { return s.next.Lock == "semaphore" && s.grant() })
	if !ok {
		return nil, false
	}
	g := s.next
	g.Slot, g.Token, g.Acquisition, g.ExpiresAt = 3, g.Token+1, "planted", g.GrantedAt+1
	return insert(h, s.at, g), true
}

func plantChangedKind(h *history.History, rng *rand.Rand) (history.Event, bool) {
	s, ok := choose(h, rng, func(s succession) bool { return s.next.Lock == "semaphore" && s.grant() })
	if !ok {
		return nil, false
	}
	return insert(h, s.at, history.Change{Lock: s.next.Lock, Permits: 3, RecordedAt: s.next.RecordedAt}), true
}

func plantSplitGroup(h *history.History, rng *rand.Rand) (history.Event, bool) {
	s, ok := choose(h, rng, func(s succession) bool { return s.mutex() && s.takeover() && s.lone })
	other := h.Changes[rng.IntN(len(h.Changes))]
	if !ok || other.Lock == s.next.Lock || other.Serial > s.next.Serial || other.Token == 0 || isRevocation(other) {
		return nil, false
	}
	h.Changes[s.at].Acquisition = other.Acquisition
	return h.Changes[s.at], true
}

func plantRenewalAfterRevocation(h *history.History, rng *rand.Rand) (history.Event, bool) {
	s, ok := choose(h, rng, func(s succession) bool {
		return s.mutex() && isRevocation(s.next) && s.next.Token == s.before.Token && s.next.NotBefore > s.next.ExpiresAt
	})
	if !ok {
		return nil, false
	}
	renewal := s.next
	renewal.ExpiresAt++
	return insert(h, s.at, renewal), true
}

func plantEarlyGrant(h *history.History, rng *rand.Rand) (history.Event, bool) {
	s, ok := choose(h, rng, func(s succession) bool {
		return s.mutex() && s.grant() && s.before.ExpiresAt == 0 && s.before.NotBefore > s.before.RecordedAt+1
	})
	if !ok {
		return nil, false
	}
	h.Changes[s.at].GrantedAt = s.before.NotBefore - 1
	return h.Changes[s.at], true
}

func plantFallingToken(h *history.History, rng *rand.Rand) (history.Event, bool) {
	s, ok := choose(h, rng, func(s succession) bool { return s.mutex() && s.grant() && s.lone })
	if !ok {
		return nil, false
	}
	h.Changes[s.at].Token = s.before.Token - 1
	return h.Changes[s.at], true
}

func plantRepeatedToken(h *history.History, rng *rand.Rand) (history.Event, bool) {
	s, ok := choose(h, rng, func(s succession) bool {
		return s.mutex() && s.grant() && s.lone && s.next.Token > s.before.Token+tokenStep
	})
	if !ok {
		return nil, false
	}
	h.Changes[s.at].Token -= tokenStep // which another lock was granted in between
	return h.Changes[s.at], true
}

func plantSecondGrant(h *history.History, rng *rand.Rand) (history.Event, bool) {
	s, ok := choose(h, rng, func(s succession) bool { return s.mutex() && s.takeover() && s.lone })
	if !ok {
		return nil, false
	}
	h.Changes[s.at].Acquisition = s.before.Acquisition
	return h.Changes[s.at], true
}

func plantLateRenewal(h *history.History, rng *rand.Rand) (history.Event, bool) {
	late := history.Instant(tolerance.Microseconds()) + 1
	s, ok := choose(h, rng, func(s succession) bool {
		return s.mutex() && s.takeover() && s.next.GrantedAt > s.before.ExpiresAt+late
	})
	if !ok {
		return nil, false
	}
	renewal := s.before
	renewal.RecordedAt, renewal.ExpiresAt = s.before.ExpiresAt+late, s.next.GrantedAt
	return insert(h, s.at-1, renewal), true
}

func plantRenewalAfterRelease(h *history.History, rng *rand.Rand) (history.Event, bool) {
	s, ok := choose(h, rng, func(s succession) bool { return s.mutex() && s.grant() && s.before.ExpiresAt == 0 })
	if !ok {
		return nil, false
	}
	renewal := s.before
	renewal.ExpiresAt = s.next.GrantedAt
	return insert(h, s.at-1, renewal), true
}

func plantRepeatedSerial(h *history.History, rng *rand.Rand) (history.Event, bool) {
	i := 1 + rng.IntN(len(h.Changes)-1)
	h.Changes[i].Serial = h.Changes[i-1].Serial
	return h.Changes[i], true
}
