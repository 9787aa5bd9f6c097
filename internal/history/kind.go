package history

// slots are the rows of one lock.
type slots map[int]*row

// excludes says who excludes whom: slot 0 everybody, another slot itself and slot 0.
func excludes(a, b int) bool { return a == b || a == 0 || b == 0 }

// checkRoom sees that a grant is in a slot that its name has. Where slot 0 was deleted by hand, nobody knows.
func (c *checker) checkRoom(lock slots, change Change) {
	gate := change
	if change.Slot > 0 {
		r := lock[0]
		if r == nil {
			return
		}
		gate = r.now
	}
	if n := gate.Permits; change.Slot == 0 && n > 0 || change.Slot > 0 && (n == 0 || n > 0 && change.Slot > n) {
		c.report(WrongKind, []Event{change, gate}, "%s: granted while the name had %d permits (0: alone, -1: readers)",
			slotted(change.Lock, change.Slot), n)
	}
}

// checkProtected sees that a grant does not come too early for a row that excludes it.
func (c *checker) checkProtected(lock slots, next Change) {
	var last *row
	for slot, r := range lock {
		if excludes(slot, next.Slot) && (last == nil || r.protected() > last.protected() || r.protected() == last.protected() && slot < last.now.Slot) {
			last = r
		}
	}
	if next.GrantedAt < last.protected() {
		c.report(EarlyGrant, []Event{next, last.now}, "%s: granted at %v, but to nobody before %v",
			slotted(next.Lock, next.Slot), next.GrantedAt, last.protected())
	}
}

// changedKind follows a name that becomes another kind, which it may not while somebody holds a slot of the one that it was: readers and
// a writer are one kind, and exclude each other as slots.
func (c *checker) changedKind(lock slots, change Change) {
	if change.Permits <= 0 && lock[0].now.Permits <= 0 || lock[0].now.Lock == "" && len(lock) > 1 {
		return
	}
	for _, slot := range sortedKeys(lock, func(a, b int) int { return a - b }) {
		r := lock[slot]
		if r.grant < 0 {
			continue
		}
		if until := c.grants[r.grant].until; until > change.RecordedAt {
			c.report(WrongKind, []Event{change, r.now}, "%q: it became a lock with %d permits at %v, while token %d ran until %v",
				change.Lock, change.Permits, change.RecordedAt, r.now.Token, until)
			return
		}
	}
}
