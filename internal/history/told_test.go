package history_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencedlock/fencedlock/internal/history"
)

// toldOf is a history of nothing but what clients were told, a second each, one after the other.
func toldOf(grants ...history.Grant) *history.History {
	h := &history.History{Processes: []history.Process{{Name: "p", Started: time.Unix(1000, 0)}}}
	for i, g := range grants {
		from := time.Duration(i) * time.Second
		h.Trusts = append(h.Trusts, history.Trust{Grant: g, Process: "p", From: from, Until: from + time.Second})
	}
	return h
}

func TestWithoutALogWhatWasToldIsHeldToTheSame(t *testing.T) {
	a := func(lock string, token int64) history.Grant {
		return history.Grant{Client: "a", Lock: lock, Token: token}
	}
	b := func(lock string, token int64) history.Grant {
		return history.Grant{Client: "b", Lock: lock, Token: token}
	}
	overlap := toldOf(a("x", 1), b("x", 2))
	overlap.Trusts[0].Until += time.Millisecond
	for what, c := range map[string]struct {
		h    *history.History
		want []history.Kind
	}{
		"rising":                     {toldOf(a("x", 1), b("y", 3), b("x", 2)), nil},
		"told twice of one grant":    {toldOf(a("x", 1), a("x", 1)), nil},
		"two names of a group":       {toldOf(a("x", 1), a("y", 1)), nil},
		"a group's token falls":      {toldOf(b("y", 2), a("x", 1), a("y", 1)), []history.Kind{history.FallingToken}},
		"an overlap":                 {overlap, []history.Kind{history.OverlappingTrust}},
		"a token that falls":         {toldOf(a("x", 2), b("x", 1)), []history.Kind{history.FallingToken}},
		"one that repeats":           {toldOf(a("x", 1), b("x", 1)), []history.Kind{history.RepeatedToken}},
		"one that repeats elsewhere": {toldOf(a("x", 1), b("y", 1)), []history.Kind{history.RepeatedToken}},
		"both":                       {toldOf(a("x", 1), a("x", 2), b("x", 1)), []history.Kind{history.RepeatedToken, history.FallingToken}},
	} {
		r := history.Check(c.h, history.Options{LogLost: true, OneMachine: true})
		if len(r.Violations) != len(c.want) {
			t.Errorf("%s: %v, want %v", what, r.Err(), c.want)
			continue
		}
		for i, v := range r.Violations {
			if v.Kind != c.want[i] {
				t.Errorf("%s: %v, want %v", what, v, c.want[i])
			}
		}
		if r.Stats.Told != len(c.h.Trusts) {
			t.Errorf("%s: %d told, want %d", what, r.Stats.Told, len(c.h.Trusts))
		}
	}
}

func TestALapseThatIsNoticedLateEndsWhenItWasDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // its Sleep takes no time
		r := history.NewRecorder("p")
		early, late := r.Told(history.Grant{Lock: "x", Token: 1}), r.Told(history.Grant{Lock: "y", Token: 2})
		early.Lapsed(time.Now().Add(time.Hour), "database") // the database said so before
		due := time.Now()
		time.Sleep(time.Millisecond)
		late.Lapsed(due, "expired")
		trusts := r.History().Trusts
		if trusts[0].Until > time.Minute {
			t.Errorf("ended in the future: %v", trusts[0])
		}
		if p := r.History().Processes[0]; p.Started.Add(trusts[1].Until).After(due.Round(0).Add(time.Microsecond)) {
			t.Errorf("ended after it was due: %v", trusts[1])
		}
	})
}
