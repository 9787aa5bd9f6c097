package history

import (
	"cmp"
	"slices"
)

// checkToldTokens does what checkTokens and checkTold do, for a history without a log: grants are those that clients were
// told, in the order in which they were told on the machine's clock. A client is told while it may still trust its grant, so
// for grants that exclude each other this is the order in which they were made.
func (c *checker) checkToldTokens() {
	told := slices.Clone(c.history.Trusts)
	slices.SortStableFunc(told, func(a, b Trust) int {
		return cmp.Or(c.started[a.Process].Add(a.From).Compare(c.started[b.Process].Add(b.From)), cmp.Compare(a.Token, b.Token))
	})
	known := make(map[int64]int, len(told))
	locks := make(map[string]*rivals)
	for i, t := range told {
		c.stats.Told++
		first, again := known[t.Token]
		switch {
		case again && sameHolder(t, told[first]) && t.Lock == told[first].Lock:
			continue
		case again && sameHolder(t, told[first]): // another name of a group
		case again:
			c.report(RepeatedToken, []Event{t, told[first]}, "%s: %s was told token %d, as %s was before, of %s",
				slotted(t.Lock, t.Slot), t.Client, t.Token, told[first].Client, slotted(told[first].Lock, told[first].Slot))
		default:
			known[t.Token] = i
		}
		before := rivalsOf(locks, t.Lock)
		if top := before.of(t.Slot); top.known && t.Token < top.far {
			c.report(FallingToken, []Event{t, told[top.entry]}, "%s: %s was told token %d after %s was told %d",
				slotted(t.Lock, t.Slot), t.Client, t.Token, told[top.entry].Client, top.far)
		}
		before.add(t.Slot, i, t.Token)
	}
}
