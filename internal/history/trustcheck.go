package history

import (
	"cmp"
	"math"
	"time"
)

// A trustKey is a lock as one clock sees it: the process is empty where all processes share the machine's clock.
type trustKey struct{ process, lock string }

// checkTrustOverlaps compares the windows in which clients believed that they held a lock. The window of a grant that
// was cut short by hand may run into the next one: nothing tells its holder before its next renewal.
func (c *checker) checkTrustOverlaps() {
	locks := make(map[trustKey][]span)
	for i, t := range c.history.Trusts {
		key, shift := trustKey{t.Process, t.Lock}, int64(0)
		if c.opts.OneMachine {
			key.process, shift = "", c.started[t.Process].UnixNano()
		}
		s := span{slot: t.Slot, entry: i, from: shift + int64(t.From), until: math.MaxInt64}
		if !t.Open {
			s.until = shift + int64(t.Until)
		}
		if n, ok := c.grantOf(t.Grant); ok {
			s.forgiven = c.grants[n].cutShort
		}
		locks[key] = append(locks[key], s)
	}
	order := func(a, b trustKey) int {
		return cmp.Or(cmp.Compare(a.lock, b.lock), cmp.Compare(a.process, b.process))
	}
	for _, key := range sortedKeys(locks, order) {
		sweep(locks[key], c.reportTrust)
	}
}

func (c *checker) reportTrust(later, earlier int) {
	a, b := c.history.Trusts[later], c.history.Trusts[earlier]
	if sameHolder(a, b) {
		return
	}
	c.report(OverlappingTrust, []Event{a, b}, "%q: %s trusted token %d while %s still trusted token %d",
		a.Lock, a.Client, a.Token, b.Client, b.Token)
}

// sameHolder: a client that was told twice of the one grant it has excludes nobody.
func sameHolder(a, b Trust) bool {
	return a.Client == b.Client && a.Token == b.Token && a.Acquisition == b.Acquisition
}

// checkLosses counts the losses and looks up those that the database must bear out. One name lost is all of its group lost.
func (c *checker) checkLosses() {
	for _, t := range c.history.Trusts {
		if !t.Lost() {
			continue
		}
		c.stats.Losses++
		if c.opts.LossNeedsProof == nil || !c.opts.LossNeedsProof(t.Cause) {
			continue
		}
		n, ok := c.grantOf(t.Grant)
		if !ok {
			continue // a token that was never granted is reported as that
		}
		at := InstantOf(c.started[t.Process].Add(t.Until))
		until, alive := c.grants[n].aliveAt(at, c.opts.ClockTolerance)
		for _, other := range c.groups[c.granted(n).Token] {
			_, lives := c.grants[other].aliveAt(at, c.opts.ClockTolerance)
			alive = alive && lives
		}
		if alive {
			c.report(FalseLoss, []Event{t, c.granted(n)},
				"%s: %s lost token %d (%s) at %v, but its row was untouched and ran until %v",
				slotted(t.Lock, t.Slot), t.Client, t.Token, t.Cause, at, until)
		}
	}
}

// aliveAt reports whether the row was untouched at that instant and would not have expired for longer than tolerance.
func (g *grant) aliveAt(at Instant, tolerance time.Duration) (until Instant, alive bool) {
	soon := at.Add(tolerance)
	if g.touched != 0 && g.touched <= soon {
		return 0, false
	}
	for _, e := range g.extensions {
		if e.at <= at {
			until = e.until
		}
	}
	return until, until > soon
}
