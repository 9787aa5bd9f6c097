package history

import (
	"cmp"
	"maps"
	"slices"
)

// A span is the time of a grant or of a trust window, in whatever unit its clock has. It does not include its end.
type span struct {
	slot        int
	entry       int
	from, until int64
	forgiven    bool // later spans may overlap it
}

// sweep reports pairs of spans of one lock that overlap though they exclude each other. Every span that begins inside an
// earlier one is reported once, with the one of these that lasts longest.
func sweep(spans []span, report func(later, earlier int)) {
	slices.SortFunc(spans, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.until, b.until), cmp.Compare(a.entry, b.entry))
	})
	var before rivals
	for _, s := range spans {
		if last := before.of(s.slot); last.known && s.from < last.far {
			report(s.entry, last.entry)
		}
		if !s.forgiven {
			before.add(s.slot, s.entry, s.until)
		}
	}
}

// checkGrantOverlaps compares grants by the database's clock alone.
func (c *checker) checkGrantOverlaps() {
	locks := make(map[string][]span)
	for n, g := range c.grants {
		change := c.granted(n)
		locks[change.Lock] = append(locks[change.Lock],
			span{slot: change.Slot, entry: n, from: int64(g.from), until: int64(g.until)})
	}
	for _, lock := range sortedKeys(locks, cmp.Compare[string]) {
		sweep(locks[lock], func(later, earlier int) {
			c.report(OverlappingGrants, []Event{c.granted(later), c.granted(earlier)},
				"%q: token %d was granted at %v, but token %d ran until %v", lock,
				c.granted(later).Token, c.grants[later].from, c.granted(earlier).Token, c.grants[earlier].until)
		})
	}
}

// sortedKeys gives a report the same order in every run.
func sortedKeys[K comparable, V any](m map[K]V, order func(a, b K) int) []K {
	return slices.SortedFunc(maps.Keys(m), order)
}
