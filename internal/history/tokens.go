package history

// checkTokens goes through what has drawn a token in the database's order: each must be new, but for the rows of one
// acquisition, and above those of the grants that it excludes. Grants that do not exclude each other (two readers) draw
// their tokens side by side, so their order says nothing.
func (c *checker) checkTokens() {
	drawn := make(map[int64]Change, len(c.drawn))
	locks := make(map[string]*rivals)
	for _, place := range c.drawn {
		g := c.changes[place]
		switch first, ok := drawn[g.Token]; {
		case !ok:
			drawn[g.Token] = g
		case first.Acquisition != g.Acquisition:
			c.report(RepeatedToken, []Event{g, first}, "%s: token %d was granted before, of %s",
				slotted(g.Lock, g.Slot), g.Token, slotted(first.Lock, first.Slot))
		}
		before := rivalsOf(locks, g.Lock)
		if top := before.of(g.Slot); top.known && g.Token < top.far {
			c.report(FallingToken, []Event{g, c.changes[top.entry]}, "%s: token %d was granted after token %d",
				slotted(g.Lock, g.Slot), g.Token, top.far)
		}
		before.add(g.Slot, place, g.Token)
	}
}

// checkAcquisitions sees that one attempt was granted a name once, and all of its names with one token.
func (c *checker) checkAcquisitions() {
	groups := make(map[string]Change, len(c.grants))
	for n := range c.grants {
		g := c.granted(n)
		if other, ok := groups[g.Acquisition]; ok && other.Lock != g.Lock && other.Token != g.Token {
			c.report(SplitGroup, []Event{g, other}, "%s: acquisition %s was granted token %d, and %s with token %d",
				slotted(g.Lock, g.Slot), g.Acquisition, g.Token, slotted(other.Lock, other.Slot), other.Token)
		} else {
			groups[g.Acquisition] = g
		}
		first := c.byAcquisition[acquisitionKey{g.Lock, g.Acquisition}]
		if first == n {
			continue
		}
		c.report(AcquisitionGrantedTwice, []Event{g, c.granted(first)},
			"%s: acquisition %s was granted token %d and then token %d",
			slotted(g.Lock, g.Slot), g.Acquisition, c.granted(first).Token, g.Token)
	}
}

// checkTold sees that every token a client was told is one that the database granted, to that attempt.
func (c *checker) checkTold() {
	for _, t := range c.history.Trusts {
		c.stats.Told++
		n, ok := c.byToken[tokenKey{t.Lock, t.Slot, t.Token}]
		if !ok {
			c.report(UngrantedToken, []Event{t}, "%s: %s was told token %d, which is not in the database's log",
				slotted(t.Lock, t.Slot), t.Client, t.Token)
			continue
		}
		if g := c.granted(n); t.Acquisition != "" && t.Acquisition != g.Acquisition {
			c.report(UngrantedToken, []Event{t, g}, "%s: %s was told token %d, which another acquisition was granted",
				slotted(t.Lock, t.Slot), t.Client, t.Token)
		}
	}
}
