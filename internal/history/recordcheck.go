package history

import "time"

// checkRecord looks for what would make the other checks blind: orders that are none, and clocks that are not known.
func (c *checker) checkRecord() {
	c.started = make(map[string]time.Time, len(c.history.Processes))
	for _, p := range c.history.Processes {
		if _, ok := c.started[p.Name]; ok {
			c.report(BrokenRecord, nil, "two recorders have the name %q: their clocks cannot be told apart", p.Name)
		}
		c.started[p.Name] = p.Started
	}
	for i := 1; i < len(c.changes); i++ {
		if c.changes[i].Serial == c.changes[i-1].Serial {
			c.report(BrokenRecord, []Event{c.changes[i], c.changes[i-1]},
				"serial %d is twice in the log: was it added twice?", c.changes[i].Serial)
		}
	}
	for _, t := range c.history.Trusts {
		if _, ok := c.started[t.Process]; !ok {
			c.report(BrokenRecord, []Event{t}, "the start of process %q is not recorded", t.Process)
		}
		if !t.Open && t.Until < t.From {
			c.report(BrokenRecord, []Event{t}, "a trust window ends before it begins")
		}
	}
	c.checkWriteSerials()
}

func (c *checker) checkWriteSerials() {
	type place struct {
		resource string
		serial   int64
	}
	seen := make(map[place]Write)
	for _, w := range c.history.Writes {
		if !w.Accepted {
			continue
		}
		p := place{w.Resource, w.Serial}
		if first, ok := seen[p]; ok {
			c.report(BrokenRecord, []Event{w, first}, "%s: two accepted writes have serial %d", w.Resource, w.Serial)
		}
		seen[p] = w
	}
}
