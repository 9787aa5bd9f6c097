package history

// rivals remembers, for one lock, which of the entries so far reaches furthest, seen from each slot: up to which
// instant, or up to which token. As excludes has it, but without a look at each.
type rivals struct {
	all   reach // of any slot
	whole reach // of slot 0
	slots map[int]reach
}

type reach struct {
	entry int
	far   int64
	known bool
}

// of returns what reaches furthest among the entries that exclude one of that slot.
func (r *rivals) of(slot int) reach {
	if slot == 0 {
		return r.all
	}
	return further(r.slots[slot], r.whole)
}

func (r *rivals) add(slot, entry int, far int64) {
	e := reach{entry, far, true}
	r.all = further(r.all, e)
	if slot == 0 {
		r.whole = further(r.whole, e)
		return
	}
	if r.slots == nil {
		r.slots = make(map[int]reach)
	}
	r.slots[slot] = further(r.slots[slot], e)
}

// further prefers the earlier entry, so that a report names the first of equals.
func further(a, b reach) reach {
	if !a.known || b.known && b.far > a.far {
		return b
	}
	return a
}

// rivalsOf returns the rivals of one lock, or of whatever else is a world of its own.
func rivalsOf[K comparable](m map[K]*rivals, key K) *rivals {
	r := m[key]
	if r == nil {
		r = &rivals{}
		m[key] = r
	}
	return r
}
