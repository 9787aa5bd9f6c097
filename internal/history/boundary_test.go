package history_test

import (
	"slices"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/history"
)

// granted is a change that grants; its acquisition is named after its token unless changed.
func granted(serial int64, lock string, slot int, token int64, from, until history.Instant) history.Change {
	return history.Change{
		Serial: serial, Lock: lock, Slot: slot, Token: token, Acquisition: acquisition(token),
		GrantedAt: from, ExpiresAt: until, RecordedAt: from,
	}
}

func acquisition(token int64) string { return "a" + string(rune('0'+token)) }

// then is a later change of the same grant.
func then(serial int64, c history.Change, at, until history.Instant) history.Change {
	c.Serial, c.RecordedAt, c.ExpiresAt = serial, at, until
	return c
}

func trusted(process string, c history.Change, client string, from, until time.Duration) history.Trust {
	g := history.Grant{Client: client, Lock: c.Lock, Slot: c.Slot, Token: c.Token, Acquisition: c.Acquisition}
	return history.Trust{Grant: g, Process: process, From: from, Until: until}
}

func wrote(c history.Change, serial int64) history.Write {
	g := history.Grant{Lock: c.Lock, Slot: c.Slot, Token: c.Token, Acquisition: c.Acquisition}
	return history.Write{Grant: g, Resource: "r", Accepted: true, Serial: serial}
}

// Each case stands on one side of the line between a fault and none.
func TestBoundaries(t *testing.T) {
	a := granted(1, "x", 0, 1, 100, 200)
	b := granted(5, "x", 0, 2, 200, 300)
	early := granted(5, "x", 0, 2, 199, 300)
	reader1, reader2 := granted(1, "x", 1, 2, 100, 200), granted(2, "x", 2, 1, 100, 200)
	writer, earlyWriter := granted(3, "x", 0, 3, 200, 300), granted(3, "x", 0, 3, 199, 300)
	protected := then(2, a, 150, 0)
	protected.NotBefore = 200
	removed := then(2, a, 150, 200)
	removed.Removed = true
	again := granted(5, "x", 0, 2, 200, 300)
	again.Acquisition = a.Acquisition
	group, split := granted(5, "y", 0, 1, 100, 200), granted(5, "y", 0, 2, 100, 200)
	split.Acquisition = a.Acquisition
	elsewhere := granted(5, "y", 0, 1, 200, 300)
	elsewhere.Acquisition = "a9"
	gate := func(serial int64, permits int, at history.Instant) history.Change {
		return history.Change{Serial: serial, Lock: "x", Permits: permits, RecordedAt: at}
	}
	shared := func(at history.Instant) history.Change {
		c := then(2, a, at, 200)
		c.Permits = -1
		return c
	}
	sharing, semaphore, taken := gate(0, -1, 1), gate(0, 2, 1), granted(2, "x", 0, 2, 150, 250)
	taken.Permits = 2
	delayed := granted(1, "x", 1, 1, 100, 200)
	delayed.Delay = 50 * time.Microsecond
	slow, kept := a, a
	slow.Delay, kept.NotBefore = time.Millisecond, 200
	victim := then(2, reader1, 150, 200)
	victim.Acquisition = "r1"
	drawn := func(serial int64, slot int, at, expires history.Instant) history.Change {
		c := granted(serial, "x", slot, 4, at, expires)
		c.Acquisition, c.Permits = "r1", map[int]int{0: -1}[slot]
		return c
	}
	long := granted(1, "x", 0, 1, 100, 9000)
	revoked := then(2, long, 150, 9000)
	revoked.NotBefore = 9000
	anonymous := history.Write{Grant: history.Grant{Lock: "x", Token: 1}, Resource: "r", Accepted: true, Serial: 9}
	start := history.Process{Name: "p", Started: history.Instant(1).Add(-time.Microsecond).Time()}
	second := history.Process{Name: "q", Started: start.Started.Add(10 * time.Nanosecond)}
	lost := trusted("p", a, "c", 100*time.Microsecond, 150*time.Microsecond)
	lost.Cause = "taken"
	lapsed := lost
	lapsed.Cause = "expired"

	for _, c := range []struct {
		name string
		h    history.History
		want history.Kind // empty: none
	}{
		{"a takeover at the very expiry", history.History{Changes: log(a, b)}, ""},
		{"a takeover 1 µs before", history.History{Changes: log(a, early)}, history.OverlappingGrants},
		{"a handed over lease", history.History{
			Changes: log(a, early), HandOvers: []history.HandOver{{Lock: "x", From: "a1", To: "a2"}},
		}, ""},
		{"a lease handed over to another", history.History{
			Changes: log(a, early), HandOvers: []history.HandOver{{Lock: "x", From: "a1", To: "a3"}},
		}, history.OverlappingGrants},
		{"a lease of another lock handed over", history.History{
			Changes: log(a, early), HandOvers: []history.HandOver{{Lock: "y", From: "a1", To: "a2"}},
		}, history.OverlappingGrants},
		{"a lease with a delay handed over", history.History{
			Changes: log(slow, early), HandOvers: []history.HandOver{{Lock: "x", From: "a1", To: "a2"}},
		}, ""},
		{"a lease that is to be kept handed over", history.History{
			Changes: log(kept, early), HandOvers: []history.HandOver{{Lock: "x", From: "a1", To: "a2"}},
		}, history.EarlyGrant},
		{"a grant at the release", history.History{Changes: log(a, then(2, a, 199, 0), early)}, ""},
		{"a grant 1 µs before the release", history.History{
			Changes: log(a, then(2, a, 200, 0), early),
		}, history.OverlappingGrants},
		{"a renewal is the new expiry", history.History{
			Changes: log(a, then(2, a, 150, 201), b),
		}, history.OverlappingGrants},
		{"a row removed by hand", history.History{Changes: log(a, removed, early)}, ""},
		{"a row aged by hand", history.History{Changes: log(a, then(2, a, 199, 50), early)}, ""},
		{"a row aged by hand after the grant", history.History{
			Changes: log(a, then(2, a, 200, 50), early),
		}, history.OverlappingGrants},

		{"readers beside each other, tokens in no order", history.History{Changes: log(reader1, reader2)}, ""},
		{"a writer when the readers are over", history.History{Changes: log(reader1, reader2, writer)}, ""},
		{"a writer 1 µs before", history.History{Changes: log(reader1, earlyWriter)}, history.OverlappingGrants},
		{"a reader beside the writer", history.History{
			Changes: log(a, shared(199), granted(3, "x", 1, 2, 199, 250)),
		}, history.OverlappingGrants},
		{"a reader's token below an earlier writer's", history.History{
			Changes: log(granted(1, "x", 0, 2, 100, 200), gate(2, -1, 200), granted(3, "x", 1, 1, 200, 300)),
		}, history.FallingToken},
		{"a reader in a lock that is none of readers", history.History{
			Changes: log(a, granted(2, "x", 1, 2, 200, 250)),
		}, history.WrongKind},
		{"as many as there are permits", history.History{Changes: log(semaphore, reader1, reader2)}, ""},
		{"one more", history.History{Changes: log(semaphore, granted(1, "x", 3, 1, 100, 200))}, history.WrongKind},
		{"slot 0 of a semaphore", history.History{Changes: log(semaphore, taken)}, history.WrongKind},
		{"another number of permits at the expiry", history.History{Changes: log(semaphore, reader1, gate(3, 3, 200))}, ""},
		{"another number of permits 1 µs before", history.History{Changes: log(semaphore, reader1, gate(3, 3, 199))}, history.WrongKind},
		{"a writer at the end of a reader's delay", history.History{
			Changes: log(sharing, delayed, granted(3, "x", 0, 3, 250, 300)),
		}, ""},
		{"a writer 1 µs before", history.History{
			Changes: log(sharing, delayed, granted(3, "x", 0, 3, 249, 300)),
		}, history.EarlyGrant},
		{"another reader meanwhile", history.History{Changes: log(sharing, delayed, granted(3, "x", 2, 3, 210, 300))}, ""},

		{"revoked, and one token drawn in all slots at the expiry", history.History{
			Changes: log(sharing, reader1, victim, drawn(3, 0, 200, 0), drawn(4, 1, 200, 200), granted(5, "x", 0, 5, 200, 300)),
		}, ""},
		{"a token drawn 1 µs before", history.History{
			Changes: log(sharing, reader1, victim, drawn(3, 1, 199, 0)),
		}, history.OverlappingGrants},
		{"a grant with a token below the one that was drawn", history.History{
			Changes: log(sharing, reader1, victim, drawn(3, 1, 200, 200), granted(5, "x", 0, 3, 200, 300)),
		}, history.FallingToken},
		{"renewed after it was revoked", history.History{
			Changes: log(sharing, reader1, victim, then(3, victim, 160, 260)),
		}, history.RevivedLease},
		{"a grant before what was revoked is over", history.History{
			Changes: log(sharing, reader1, victim, granted(3, "x", 0, 5, 199, 300)),
		}, history.OverlappingGrants},
		{"a writer's token below an earlier reader's", history.History{
			Changes: log(granted(1, "x", 1, 2, 100, 200), granted(2, "x", 0, 1, 200, 300)),
		}, history.FallingToken},
		{"tokens of two locks in no order", history.History{
			Changes: log(granted(1, "x", 0, 2, 100, 200), granted(2, "y", 0, 1, 200, 300)),
		}, ""},
		{"a token falls over a removed row", history.History{
			Changes: log(granted(1, "x", 0, 2, 100, 200), granted(3, "x", 0, 1, 300, 400)),
		}, history.FallingToken},
		{"a token of another lock again", history.History{
			Changes: log(a, elsewhere),
		}, history.RepeatedToken},
		{"a removed row is re-created as it was", history.History{
			Changes: log(a, removed, then(3, a, 160, 200)),
		}, history.RevivedLease},
		{"a superseded lease takes its row back", history.History{
			Changes: log(a, granted(2, "x", 0, 2, 200, 250), then(3, a, 260, 300)),
		}, history.RevivedLease},
		{"one acquisition, two tokens", history.History{Changes: log(a, again)}, history.AcquisitionGrantedTwice},
		{"one acquisition, two locks, one token", history.History{Changes: log(a, group)}, ""},
		{"one acquisition, two locks, two tokens", history.History{Changes: log(a, split)}, history.SplitGroup},

		{"granted at not_before", history.History{Changes: log(a, protected, b)}, ""},
		{"granted 1 µs before not_before", history.History{Changes: log(a, protected, early)}, history.EarlyGrant},
		{"renewed at the tolerance", history.History{Changes: log(a, then(2, a, 2200, 2300))}, ""},
		{"renewed 1 µs later", history.History{Changes: log(a, then(2, a, 2201, 2300))}, history.RevivedLease},
		{"renewed after the release", history.History{
			Changes: log(a, then(2, a, 150, 0), then(3, a, 150, 200)),
		}, history.RevivedLease},

		{"windows that touch", windows(start, second,
			trusted("p", a, "c", 1, 5), trusted("p", b, "d", 5, 9)), ""},
		{"windows that overlap by 1 ns", windows(start, second,
			trusted("p", a, "c", 1, 6), trusted("p", b, "d", 5, 9)), history.OverlappingTrust},
		{"windows of one client that overlap", windows(start, second,
			trusted("p", a, "c", 1, 6), trusted("p", b, "c", 5, 9)), history.OverlappingTrust},
		{"one grant told twice", windows(start, second,
			trusted("p", a, "c", 1, 6), trusted("p", a, "c", 5, 9)), ""},
		{"one grant told to two clients", windows(start, second,
			trusted("p", a, "c", 1, 6), trusted("p", a, "d", 5, 9)), history.OverlappingTrust},
		{"two processes that touch on the wall clock", windows(start, second,
			trusted("p", a, "c", 1, 15), trusted("q", b, "d", 5, 9)), ""},
		{"two processes that overlap by 1 ns", windows(start, second,
			trusted("p", a, "c", 1, 16), trusted("q", b, "d", 5, 9)), history.OverlappingTrust},
		{"a window behind a removed row", history.History{
			Processes: []history.Process{start}, Changes: log(a, removed, b),
			Trusts: []history.Trust{trusted("p", a, "c", 1, 6), trusted("p", b, "d", 5, 9)},
		}, ""},

		{"told the right token", windows(start, second, trusted("p", a, "c", 1, 5)), ""},
		{"told a token of another slot", windows(start, second,
			trusted("p", granted(1, "x", 1, 1, 0, 0), "c", 1, 5)), history.UngrantedToken},
		{"told a token and no log at all", history.History{
			Processes: []history.Process{start}, Trusts: []history.Trust{trusted("p", a, "c", 1, 5)},
		}, history.UngrantedToken},

		{"a write by the same grant again", history.History{
			Changes: log(a, b), Writes: []history.Write{wrote(a, 1), wrote(b, 2), wrote(b, 3)},
		}, ""},
		{"a write by the grant before", history.History{
			Changes: log(a, b), Writes: []history.Write{wrote(a, 1), wrote(a, 3), wrote(b, 2)},
		}, history.StaleWrite},
		{"a write by the grant before that only its token knows", history.History{
			Changes: log(a, b), Writes: []history.Write{wrote(b, 2), anonymous},
		}, history.StaleWrite},
		{"a write by the grant before, told after", history.History{
			Changes: log(a, b), Writes: []history.Write{wrote(b, 2), wrote(a, 1)},
		}, ""},
		{"two writes with one serial", history.History{
			Changes: log(a, b), Writes: []history.Write{wrote(a, 1), wrote(b, 1)},
		}, history.BrokenRecord},

		{"lost while the row is untouched", lossOf(start, lost, long), history.FalseLoss},
		{"lapsed while the row is untouched", lossOf(start, lapsed, long), ""},
		{"lost after a revoke", lossOf(start, lost, long, revoked), ""},
		{"lost with another name of its group", lossOf(start, lost, long, group), ""},
		{"lost after the removal", lossOf(start, lost, a, removed), ""},
		{"lost and released at the tolerance", lossOf(start, lost, long, then(2, long, 2150, 0)), ""},
		{"lost and released 1 µs later", lossOf(start, lost, long, then(2, long, 2151, 0)), history.FalseLoss},
		{"lost as it expires, at the tolerance", lossOf(start, lost, granted(1, "x", 0, 1, 100, 2150)), ""},
		{"lost, to expire 1 µs later", lossOf(start, lost, granted(1, "x", 0, 1, 100, 2151)), history.FalseLoss},
		{"lost as the renewal is on its way", lossOf(start, lost, a, then(2, a, 151, 9000)), ""},
		{"lost after a renewal", lossOf(start, lost, a, then(2, a, 150, 9000)), history.FalseLoss},

		{"a process that nobody knows", history.History{
			Changes: log(a), Trusts: []history.Trust{trusted("p", a, "c", 1, 5)},
		}, history.BrokenRecord},
		{"a process that is there twice", history.History{
			Processes: []history.Process{start, start},
		}, history.BrokenRecord},
		{"a window that ends before it begins", windows(start, second,
			trusted("p", a, "c", 5, 4)), history.BrokenRecord},
	} {
		t.Run(c.name, func(t *testing.T) {
			opts := checkOptions()
			opts.OneMachine = true

			var kinds []history.Kind
			for _, v := range history.Check(&c.h, opts).Violations {
				kinds = append(kinds, v.Kind)
			}

			want := []history.Kind{c.want}
			if c.want == "" {
				want = nil
			}
			if !slices.Equal(kinds, want) {
				t.Errorf("found %q, want %q", kinds, want)
			}
		})
	}
}

func log(changes ...history.Change) []history.Change { return changes }

// windows is a history of two grants, one after the other, with windows of trust in them.
func windows(p, q history.Process, trusts ...history.Trust) history.History {
	return history.History{
		Processes: []history.Process{p, q},
		Changes:   log(granted(1, "x", 0, 1, 100, 200), granted(5, "x", 0, 2, 200, 300)),
		Trusts:    trusts,
	}
}

func lossOf(p history.Process, loss history.Trust, changes ...history.Change) history.History {
	return history.History{Processes: []history.Process{p}, Changes: changes, Trusts: []history.Trust{loss}}
}
