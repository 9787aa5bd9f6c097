package history_test

import (
	"strings"
	"testing"

	"github.com/fencedlock/fencedlock/internal/history"
)

func TestStatsAtLeastNamesEveryMissingCount(t *testing.T) {
	got := history.Stats{Grants: 5, Renewals: 2}

	err := got.AtLeast(history.Stats{Grants: 5, Takeovers: 1, Renewals: 3})

	const want = "history: 0 takeovers, want at least 1\nhistory: 2 renewals, want at least 3"
	if err == nil || err.Error() != want {
		t.Errorf("AtLeast = %v, want %q", err, want)
	}
	if err := got.AtLeast(got); err != nil {
		t.Errorf("AtLeast of itself = %v, want nil", err)
	}
}

// A small history whose counts are known, with one of each.
func TestStatsCount(t *testing.T) {
	a := granted(1, "x", 0, 1, 100, 200)
	renewed := then(2, a, 150, 300)
	b := granted(3, "x", 0, 2, 300, 400)  // takes over
	c := granted(4, "x", 0, 3, 350, 500)  // is handed over
	released := then(5, c, 400, 0)        // in time
	d := granted(6, "x", 0, 4, 400, 500)  // follows a release
	lateRelease := then(7, d, 600, 0)     // after the expiry, but nobody had to take over
	e := granted(8, "x", 0, 5, 600, 700)  // follows that release
	removed := then(9, e, 650, 700)       // alive
	f := granted(10, "x", 0, 6, 650, 700) // follows the removal
	pruned := then(11, f, 700, 700)       // long over
	planted := history.Change{Serial: 12, Lock: "x", RecordedAt: 700}
	removed.Removed, pruned.Removed = true, true
	lost, open := trusted("p", b, "c", 1, 2), trusted("p", c, "c", 3, 0)
	lost.Cause, open.Open = "expired", true

	report := history.Check(&history.History{
		Processes: []history.Process{{Name: "p"}},
		Changes:   log(a, renewed, b, c, released, d, lateRelease, e, removed, f, pruned, planted),
		HandOvers: []history.HandOver{{Lock: "x", From: "a2", To: "a3"}},
		Trusts:    []history.Trust{lost, open},
		Writes:    []history.Write{wrote(a, 1), {Grant: history.Grant{Lock: "x", Token: 1}, Resource: "r"}},
	}, history.Options{})

	want := history.Stats{
		Grants: 6, Takeovers: 1, HandOvers: 1, Renewals: 1, Releases: 2, Removals: 1, Told: 2, Losses: 1,
		WritesAccepted: 1, WritesRefused: 1,
	}
	if err := report.Err(); err != nil {
		t.Error(err)
	}
	if report.Stats != want {
		t.Errorf("stats = %+v, want %+v", report.Stats, want)
	}
}

func TestReportErrShowsTheFirstViolationsOnly(t *testing.T) {
	var h history.History
	for range 1000 {
		h.Writes = append(h.Writes, history.Write{Grant: history.Grant{Lock: "x", Token: 1}, Accepted: true})
	}

	err := history.Check(&h, history.Options{}).Err()

	if err == nil || !strings.Contains(err.Error(), "1999 violations") || strings.Count(err.Error(), "\n") > 40 {
		t.Errorf("Err = %v, want the number of violations and a few of them", err)
	}
	if err := (history.Report{}).Err(); err != nil {
		t.Errorf("Err of an empty report = %v, want nil", err)
	}
}
