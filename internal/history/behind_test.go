package history_test

import (
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/history"
)

// A fault must not hide the ones behind it: each entry is compared with whatever reached furthest, not with the last.
func TestFaultsAreSeenBehindOthers(t *testing.T) {
	start := history.Process{Name: "p", Started: history.Instant(1).Time()}
	long, short, after := granted(1, "x", 0, 1, 100, 900), granted(2, "x", 0, 2, 200, 300), granted(3, "x", 0, 3, 400, 500)
	third, first, second := granted(1, "x", 0, 3, 100, 200), granted(2, "x", 0, 1, 200, 300), granted(3, "x", 0, 2, 300, 400)
	one, two, three := granted(1, "x", 0, 1, 100, 200), granted(2, "x", 0, 2, 200, 300), granted(3, "x", 0, 3, 300, 400)

	for _, c := range []struct {
		kind history.Kind
		h    history.History
	}{
		{history.OverlappingGrants, history.History{Changes: log(long, short, after)}},
		{history.FallingToken, history.History{Changes: log(third, first, second)}},
		{history.OverlappingTrust, history.History{
			Processes: []history.Process{start}, Changes: log(one, two, three),
			Trusts: []history.Trust{
				trusted("p", one, "c", 1, time.Hour), trusted("p", two, "d", 2, 3), trusted("p", three, "e", 4, 5),
			},
		}},
		{history.StaleWrite, history.History{
			Changes: log(one, two, three),
			Writes:  []history.Write{wrote(three, 1), wrote(one, 2), wrote(two, 3)},
		}},
		{history.SupersededWrite, history.History{
			Changes: log(one, two, three),
			Writes:  []history.Write{wrote(three, 1), stating(3, wrote(one, 2)), stating(3, wrote(two, 3))},
		}},
	} {
		violations := history.Check(&c.h, history.Options{}).Violations
		if len(violations) != 2 || violations[0].Kind != c.kind || violations[1].Kind != c.kind {
			t.Errorf("found %v, want 2 of the kind %q", violations, c.kind)
		}
	}
}

// stating is the write under another token than its grant's.
func stating(token int64, w history.Write) history.Write {
	w.Token = token
	return w
}
