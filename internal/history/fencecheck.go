package history

import (
	"cmp"
	"slices"
)

// A fenceKey is one order of writes: a resource as the grants of one lock and slot write to it.
type fenceKey struct {
	resource, lock string
	slot           int
}

// A passage is the furthest that anything has come through a fence: by its token, or by the number of its grant.
type passage struct {
	far   int64
	write int
	known bool
}

// checkWrites goes through the accepted writes of each resource in the database's order.
//
// Two orders are watched: the tokens, which are all a fence can see, and the grants behind them by the log. The second
// finds a write that was let through because it stated a token that is not its own.
func (c *checker) checkWrites() {
	tokens := make(map[string]passage)
	grants := make(map[fenceKey]passage)
	for _, i := range c.acceptedWrites() {
		w := c.history.Writes[i]
		if _, ok := c.byToken[tokenKey{w.Lock, w.Slot, w.Token}]; !ok {
			c.report(UngrantedToken, []Event{w}, "%s: a write was accepted under token %d of %s, which was never granted",
				w.Resource, w.Token, slotted(w.Lock, w.Slot))
		}
		last := tokens[w.Resource]
		if last.known && w.Token < last.far {
			c.report(StaleWrite, []Event{w, c.history.Writes[last.write]}, "%s: token %d was accepted after token %d",
				w.Resource, w.Token, last.far)
			continue
		}
		tokens[w.Resource] = passage{w.Token, i, true}
		c.checkSuperseded(grants, i)
	}
}

func (c *checker) checkSuperseded(grants map[fenceKey]passage, i int) {
	w := c.history.Writes[i]
	n, ok := c.grantOf(w.Grant)
	if !ok {
		return
	}
	key := fenceKey{w.Resource, w.Lock, w.Slot}
	last := grants[key]
	if last.known && n < int(last.far) {
		c.report(SupersededWrite, []Event{w, c.history.Writes[last.write]},
			"%s: a write of the grant with token %d was accepted after one of the later grant with token %d",
			w.Resource, c.granted(n).Token, c.granted(int(last.far)).Token)
		return
	}
	grants[key] = passage{int64(n), i, true}
}

// acceptedWrites counts the writes and returns the places of the accepted ones, resource by resource in their order.
func (c *checker) acceptedWrites() []int {
	var accepted []int
	for i, w := range c.history.Writes {
		if !w.Accepted {
			c.stats.WritesRefused++
			continue
		}
		c.stats.WritesAccepted++
		accepted = append(accepted, i)
	}
	slices.SortStableFunc(accepted, func(a, b int) int {
		x, y := c.history.Writes[a], c.history.Writes[b]
		return cmp.Or(cmp.Compare(x.Resource, y.Resource), cmp.Compare(x.Serial, y.Serial))
	})
	return accepted
}
