package pglock

import "time"

// A mark says in the database that a queue of this client waits, so that a release by another process wakes it. It is made by the try
// itself, or by a note of its own where several names are wanted, or a place in the line.

// remarkAfter keeps a mark from going out of date: it counts for a minute.
const remarkAfter = 30 * time.Second

// answered notes what became of the mark that an acquisition was to make, or to take away. The caller has locked the queues.
func (q *queue) answered(wait int64, status string) {
	switch {
	case q.wait != wait: // it counts no more
		if status == "marked" || status == "" {
			q.client.work.note(&note{verb: unmarkNote, name: q.name, wait: wait})
		}
	case status == "granted":
		q.wait = 0
	case status == "marked", status == "": // or perhaps
		q.placed = true
	case !q.placed:
		q.wait = 0
	}
}

func (qs *queues) isShared(w *waiter) bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	return w.isShared
}

func (qs *queues) isMarked(w *waiter) bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	return w.marked
}

// unmark takes the mark of a queue away; if a release had woken this client in vain, another is woken instead. The caller has locked
// the queues.
func (q *queue) unmark(granted bool) (notes []*note) {
	if q.wait != 0 {
		notes = append(notes, &note{verb: unmarkNote, name: q.name, wait: q.wait})
	}
	if q.woken != 0 && q.woken != q.wait && !granted {
		notes = append(notes, &note{verb: unmarkNote, name: q.name, wait: q.woken})
	}
	q.wait, q.woken = 0, 0
	return notes
}

// promise is what a waiter asks for from now on, unless it has asked before. The caller has locked the queues.
func (w *waiter) promise(id acquisition) {
	if !w.id.Valid {
		w.id, w.made = id, w.queue.client.clock.now()
	}
}

// disown ends what a release may grant to a waiter that leaves, or has, once the mark that says so is gone; it may be among the notes
// already. The caller has locked the queues.
func (q *queue) disown(w *waiter, notes []*note) []*note {
	giveUp := q.client.clock.now().add(bequestTime)
	end := &surrender{places: w.config.placesIn(nil), id: w.id, giveUp: giveUp, unheld: true}
	if len(notes) == 0 {
		notes = append(notes, &note{verb: unmarkNote, name: q.name, wait: q.wait, id: w.id})
	}
	notes[0].end = end
	return notes
}

// mark begins to mark the wait of a queue in the database; nil: that was done lately. A place in the line is looked at each time.
func (qs *queues) mark(w *waiter) *note {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := w.queue
	if q.wait != 0 && !w.config.fair && !q.fair && q.kind == w.config.kind && qs.client.clock.left(q.marked) > -remarkAfter {
		return nil
	}
	if q.wait == 0 {
		qs.waits++
		q.wait, q.placed = qs.waits, false
	}
	q.fair, q.kind = w.config.fair, w.config.kind
	q.marked = qs.client.clock.now()
	n := &note{verb: markNote, name: q.name, wait: q.wait, fair: q.fair, kind: q.kind, answer: make(chan reply, 1)}
	if w.config.isPlain() {
		if w.promised {
			w.made = instant{} // this mark might be made after the lease that comes of the one before
		}
		w.promise(newAcquisition())
		n.id, n.ttl, w.promised = w.id, w.config.ttl, true
	}
	return n
}

// marked notes what became of a mark. One that may not have been made is taken back, unless it is a place in the line.
func (qs *queues) marked(w *waiter, n *note, status string) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := w.queue
	if q.wait != n.wait {
		return
	}
	switch {
	case status == "marked", status == "queued":
		q.placed = true
	case status == "retry" && (!n.fair || !q.placed):
		q.wait = 0
	case status == "" && n.fair:
		q.placed = true
	case status == "":
		q.wait = 0
		qs.client.work.note(&note{verb: unmarkNote, name: n.name, wait: n.wait})
	}
}

// wake takes a notification: a release has taken this mark, or found this place first, and may have granted the lock. One for a wait that has
// ended is passed on.
func (qs *queues) wake(name string, wait int64, b bequest) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.byName[name]
	if q == nil || q.wait != wait || len(q.waiters) == 0 {
		qs.client.work.note(&note{verb: unmarkNote, name: name, wait: wait})
		return
	}
	q.woken, q.marked = wait, instant{}
	if b.id.Valid {
		q.waiters[0].inherit(b)
	}
	q.nudge()
}

// listening tells all who ask the database that notifications come, or come no longer: then what was marked counts no more.
func (qs *queues) listening(on bool) {
	qs.mu.Lock()
	var notes []*note
	for _, q := range qs.byName {
		if q.wait != 0 && !q.fair && !on {
			notes = append(notes, &note{verb: unmarkNote, name: q.name, wait: q.wait})
			q.wait = 0
		}
		if q.holder == nil {
			q.nudge()
		}
	}
	qs.client.work.note(notes...)
	qs.mu.Unlock()
}
