package history

// A grant is the life of one lease by the database's log.
type grant struct {
	change      int // the place of the change that granted it
	from, until Instant
	end         ending
	// cutShort: the row was removed, or its expiry moved forward, by a hand that is not the protocol's. Its holder
	// could not know at once.
	cutShort bool
	// touched is the first instant at which anything but its own renewal changed the row; 0 if nothing did.
	touched Instant
	// extensions are what the row said about its expiry, from which instant on.
	extensions []extension
}

type extension struct{ at, until Instant }

type ending int

const (
	endedByExpiry ending = iota
	endedByRelease
	endedByHandOver
	endedByRemoval
)

// A row is what one lease row said after the last change.
type row struct {
	grant   int // -1: none
	now     Change
	revoked bool // its grant was taken from its holder
}

// protected is the instant before which nobody else is granted what the row has.
func (r *row) protected() Instant {
	if r.now.ExpiresAt == 0 || r.now.Delay == 0 {
		return r.now.NotBefore
	}
	return max(r.now.NotBefore, r.now.ExpiresAt.Add(r.now.Delay))
}

type rowKey struct {
	lock string
	slot int
}

type handOverKey struct {
	rowKey
	from, to string
}

// replay runs through the log in the database's order and tells grants, renewals and ends apart.
func (c *checker) replay() {
	c.byToken = make(map[tokenKey]int)
	c.byAcquisition = make(map[acquisitionKey]int)
	c.groups = make(map[int64][]int)
	handedOver := make(map[handOverKey]bool, len(c.history.HandOvers))
	for _, h := range c.history.HandOvers {
		handedOver[handOverKey{rowKey{h.Lock, h.Slot}, h.From, h.To}] = true
	}
	locks := make(map[string]slots)
	for i, change := range c.changes {
		lock := locks[change.Lock]
		if lock == nil {
			lock = make(slots)
			locks[change.Lock] = lock
		}
		r := lock[change.Slot]
		if r == nil {
			r = &row{grant: -1}
			lock[change.Slot] = r
		}
		if change.Slot == 0 && change.Permits != r.now.Permits {
			c.changedKind(lock, change)
		}
		switch {
		case change.Removed:
			c.removed(r, change)
			delete(lock, change.Slot)
			continue
		case r.grant >= 0 && sameGrant(r.now, change):
			c.changed(r, change)
		case r.grant >= 0 && revokes(r.now, change):
			c.grants[r.grant].touch(change.RecordedAt)
			c.stats.Revocations++
			r.revoked = true
		case change.Token != 0 && change.Token != r.now.Token && change.ExpiresAt <= change.GrantedAt:
			c.drew(r, i)
		case r.grant < 0 && sameGrant(r.now, change) && change.ExpiresAt == r.now.ExpiresAt: // its kind, say
		case change.Acquisition == "" || change.ExpiresAt == 0: // a row that was planted, or reset
			c.removed(r, change)
			r.grant = -1
		default:
			if old, ok := c.earlier(change); ok {
				r.grant = c.returned(r, old, change)
				break
			}
			given := handedOver[handOverKey{rowKey{change.Lock, change.Slot}, r.now.Acquisition, change.Acquisition}]
			if given {
				r.now.Delay = 0 // it was over, and not by itself
			}
			c.checkRoom(lock, change)
			c.checkProtected(lock, change)
			c.superseded(r, change, given)
			r.grant, r.revoked = c.begin(i), false
		}
		r.now = change
	}
}

func sameGrant(a, b Change) bool { return a.Token == b.Token && a.Acquisition == b.Acquisition }

// revokes: the grant runs out, and is nobody's any more.
func revokes(before, next Change) bool {
	return before.Token == next.Token && before.ExpiresAt == next.ExpiresAt
}

// drew follows a token that nobody holds: what the grants before have still to write is stale.
func (c *checker) drew(r *row, place int) {
	change := c.changes[place]
	if r.grant >= 0 {
		g := &c.grants[r.grant]
		g.touch(change.RecordedAt)
		if change.GrantedAt < g.until {
			c.report(OverlappingGrants, []Event{change, c.granted(r.grant)}, "%s: token %d was drawn for nobody at %v, but token %d ran until %v",
				slotted(change.Lock, change.Slot), change.Token, change.GrantedAt, r.now.Token, g.until)
		}
	}
	r.grant = -1
	c.drawn = append(c.drawn, place)
}

// begin adds the grant that was made by the change at that place.
func (c *checker) begin(place int) int {
	change := c.changes[place]
	n := len(c.grants)
	c.grants = append(c.grants, grant{
		change: place, from: change.GrantedAt, until: change.ExpiresAt,
		extensions: []extension{{change.RecordedAt, change.ExpiresAt}},
	})
	// The first one keeps its place in the indexes; a second one is a violation that is found elsewhere.
	setFirst(c.byToken, tokenKey{change.Lock, change.Slot, change.Token}, n)
	setFirst(c.byAcquisition, acquisitionKey{change.Lock, change.Acquisition}, n)
	c.groups[change.Token] = append(c.groups[change.Token], n)
	c.drawn = append(c.drawn, place)
	c.stats.Grants++
	return n
}

// changed follows a change that leaves the grant of a row the same.
func (c *checker) changed(r *row, change Change) {
	g := &c.grants[r.grant]
	switch {
	case change.ExpiresAt == r.now.ExpiresAt:
		if change.NotBefore != r.now.NotBefore { // revoked: it runs out, but renewals are refused
			g.touch(change.RecordedAt)
		}
	case change.ExpiresAt == 0:
		g.touch(change.RecordedAt)
		g.until, g.end = min(g.until, change.RecordedAt), endedByRelease
		c.stats.Releases++
	case change.ExpiresAt > r.now.ExpiresAt:
		c.extended(r, change)
	default:
		g.shorten(max(change.ExpiresAt, change.RecordedAt))
		g.touch(change.RecordedAt)
	}
}

// extended follows a renewal, and sees whether there was anything left to renew.
func (c *checker) extended(r *row, change Change) {
	g := &c.grants[r.grant]
	events := []Event{change, c.changes[g.change]}
	switch {
	case r.now.ExpiresAt == 0:
		c.report(RevivedLease, events, "%s: token %d was renewed after its release",
			slotted(change.Lock, change.Slot), change.Token)
	case r.revoked:
		c.report(RevivedLease, events, "%s: token %d was renewed after it was revoked",
			slotted(change.Lock, change.Slot), change.Token)
	case change.RecordedAt > r.now.ExpiresAt.Add(c.opts.RenewalTolerance):
		c.report(RevivedLease, events, "%s: token %d expired at %v and was renewed at %v",
			slotted(change.Lock, change.Slot), change.Token, r.now.ExpiresAt, change.RecordedAt)
	}
	g.until, g.end = change.ExpiresAt, endedByExpiry
	g.extensions = append(g.extensions, extension{change.RecordedAt, change.ExpiresAt})
	c.stats.Renewals++
}

// earlier finds the grant that a row already gave under the same token to the same acquisition.
func (c *checker) earlier(change Change) (int, bool) {
	n, ok := c.byToken[tokenKey{change.Lock, change.Slot, change.Token}]
	return n, ok && c.granted(n).Acquisition == change.Acquisition
}

// returned follows a lease that came back after its row was removed or given to another: a renewal that re-creates
// what it does not find, or takes back what it has lost.
func (c *checker) returned(r *row, old int, change Change) int {
	c.report(RevivedLease, []Event{change, c.granted(old)}, "%s: token %d came back after its row was lost",
		slotted(change.Lock, change.Slot), change.Token)
	if r.grant >= 0 {
		c.grants[r.grant].touch(change.RecordedAt)
	}
	// Its time is not extended: it did not run all the while, and the fault has been reported.
	return old
}

// removed ends the grant of a row that is no longer there.
func (c *checker) removed(r *row, change Change) {
	if r.grant < 0 {
		return
	}
	g := &c.grants[r.grant]
	if g.end == endedByExpiry && change.RecordedAt < g.until {
		g.end = endedByRemoval
		c.stats.Removals++
	}
	g.shorten(change.RecordedAt)
	g.touch(change.RecordedAt)
}

// superseded ends the grant of a row that another one takes the place of. Its expiry is not touched: if it lies after
// the next grant, the two overlap.
func (c *checker) superseded(r *row, next Change, handedOver bool) {
	if r.grant < 0 {
		return
	}
	g := &c.grants[r.grant]
	g.touch(next.RecordedAt)
	switch {
	case g.end == endedByRelease:
	case handedOver && next.GrantedAt < g.until:
		g.until, g.end = next.GrantedAt, endedByHandOver
		c.stats.HandOvers++
	default:
		c.stats.Takeovers++
	}
}

func (g *grant) touch(at Instant) {
	if g.touched == 0 {
		g.touched = at
	}
}

func (g *grant) shorten(until Instant) {
	if until < g.until {
		g.until, g.cutShort = until, true
	}
}

func setFirst[K comparable](m map[K]int, key K, value int) {
	if _, ok := m[key]; !ok {
		m[key] = value
	}
}
