package history

// checkTokens goes through the grants in the database's order: the token of each must be new, and above those of the
// grants that it excludes. Grants that do not exclude each other (two readers) draw their tokens side by side, so
// their order says nothing.
func (c *checker) checkTokens() {
	granted := make(map[int64]int, len(c.grants))
	locks := make(map[string]*rivals)
	for n := range c.grants {
		g := c.granted(n)
		if first, ok := granted[g.Token]; ok {
			c.report(RepeatedToken, []Event{g, c.granted(first)}, "%s: token %d was granted before, of %s",
				slotted(g.Lock, g.Slot), g.Token, slotted(c.granted(first).Lock, c.granted(first).Slot))
		} else {
			granted[g.Token] = n
		}
		before := rivalsOf(locks, g.Lock)
		if top := before.of(g.Slot); top.known && g.Token < top.far {
			c.report(FallingToken, []Event{g, c.granted(top.entry)}, "%s: token %d was granted after token %d",
				slotted(g.Lock, g.Slot), g.Token, top.far)
		}
		before.add(g.Slot, n, g.Token)
	}
}

// checkAcquisitions sees that one attempt was granted a name once.
func (c *checker) checkAcquisitions() {
	for n := range c.grants {
		g := c.granted(n)
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
