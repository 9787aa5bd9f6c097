package pglock

import (
	"errors"
	"slices"
	"sync"
	"time"
)

const (
	// maxHandOvers and maxHandOverTime bound how long a process passes a lock from one of its own to the next while another
	// process waits for it.
	maxHandOvers    = 16
	maxHandOverTime = 50 * time.Millisecond

	// yieldFor is how long it then stands back, for the other to ask.
	yieldFor = 20 * time.Millisecond

	// remarkAfter keeps a mark from going out of date: it counts for a minute.
	remarkAfter = 30 * time.Second
)

// The queues of a client are who waits in this process, for each name in the order in which they came. Only the first of a
// queue asks the database, and nobody while the process holds the lock itself: its release hands the lock to the first.
// Nothing is sent while queues.mu is held; work.mu may be locked under it, and not the other way round.
type queues struct {
	client *Client

	mu     sync.Mutex
	byName map[string]*queue // those with a waiter or a holder
	waits  int64             // the number of the last mark
}

type queue struct {
	name    string
	waiters []*waiter
	holder  *Lease // of this client; nil while it holds none that it trusts
	reason  error  // why the first waits, as it was told last

	wait   int64   // the number of the mark in the database; 0: none
	fair   bool    // it is a place in the line, which stays until it is given up
	placed bool    // it was made, or may have been
	marked instant // when it was made
	woken  int64   // the number of the mark for which a release has woken this client; 0: none since somebody was answered

	streak      int     // hand-overs in a row, while another process waited
	streakBegan instant // the first of them
	yield       instant // until then another process goes first
}

// A waiter is one call of Acquire.
type waiter struct {
	config leaseConfig
	queue  *queue
	again  chan struct{} // has room for one: look what is new

	// Under queues.mu.
	request *request // on its way for this waiter, by its own asking or by a hand-over
	failed  error    // what the first was told and waiting does not cure
}

func newQueues(c *Client) *queues { return &queues{client: c, byName: map[string]*queue{}} }

// of answers the queue of a name. The caller has locked the queues.
func (qs *queues) of(name string) *queue {
	q := qs.byName[name]
	if q == nil {
		q = &queue{name: name}
		qs.byName[name] = q
	}
	return q
}

func (qs *queues) enter(lc leaseConfig) *waiter {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.of(lc.name)
	w := &waiter{config: lc, queue: q, again: make(chan struct{}, 1)}
	q.waiters = append(q.waiters, w)
	return w
}

func (w *waiter) nudge() {
	select {
	case w.again <- struct{}{}:
	default:
	}
}

// nudge tells the first. The caller has locked the queues.
func (q *queue) nudge() {
	if len(q.waiters) > 0 {
		q.waiters[0].nudge()
	}
}

// turn answers what is on its way for a waiter, and asks for it where that is its part now. Without a request, the waiter is
// to look again after the time, or when it is nudged; a fair one that is to see to its place in the line has no time to wait.
func (qs *queues) turn(w *waiter) (r *request, wait time.Duration, failed error) {
	qs.mu.Lock()
	q := w.queue
	wait = idleAfter
	mine := w.request == nil && w == q.waiters[0]
	switch {
	case !mine:
	case w.config.fair:
		mine, wait = false, 0
	case q.holder != nil:
		mine = false
	case !q.yield.isZero():
		if left := qs.client.clock.left(q.yield); left > 0 {
			mine, wait = false, left
		}
	}
	r, failed = w.request, w.failed
	qs.mu.Unlock()
	if mine {
		r = qs.ask(w)
	}
	return r, wait, failed
}

// ask asks the database for the first of a queue.
func (qs *queues) ask(w *waiter) *request {
	qs.mu.Lock()
	r := w.request
	mine := r == nil // and not handed over meanwhile
	if mine {
		r = newRequest(w.config)
		r.afterWake = w.queue.woken != 0
		w.request = r
	}
	qs.mu.Unlock()
	if mine {
		qs.client.work.ask(r)
	}
	return r
}

// underway is what was handed to a waiter, or is about to be.
func (qs *queues) underway(w *waiter) *request {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	return w.request
}

// told notes what a waiter was answered.
func (qs *queues) told(w *waiter, r *request, a reply) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := w.queue
	if w.request == r {
		w.request = nil
	}
	if a.status != "" && r.afterWake {
		q.woken = 0
	}
	if a.status != "granted" {
		return
	}
	q.yield = instant{}
	switch {
	case !r.handed || !a.awaited:
		q.streak = 0
	case q.streak == 0:
		q.streakBegan = qs.client.clock.now()
		fallthrough
	default:
		q.streak++
	}
}

// heir answers a request for whoever is to have a lock that is about to be released; nil if nobody waits for it here, or if
// another process is to go first.
func (qs *queues) heir(name string) *request {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.byName[name]
	if q == nil || len(q.waiters) == 0 || q.holder != nil {
		return nil
	}
	w := q.waiters[0]
	if w.request != nil && w.request.state.Load() == waiting { // it is asking by itself
		return nil
	}
	if w.config.fair { // it may be another's turn
		w.nudge()
		return nil
	}
	if q.streak >= maxHandOvers || q.streak > 0 && qs.client.clock.left(q.streakBegan) <= -maxHandOverTime {
		q.streak = 0
		q.yield = qs.client.clock.now().add(jitter(yieldFor))
		w.nudge()
		return nil
	}
	w.request = newRequest(w.config)
	w.request.handed, w.request.afterWake = true, q.woken != 0
	w.nudge()
	return w.request
}

// leave takes a waiter out; the next one takes its place. What may be on its way for it is given back.
func (qs *queues) leave(w *waiter, granted bool) {
	qs.mu.Lock()
	q := w.queue
	first := q.waiters[0] == w
	q.waiters = slices.DeleteFunc(q.waiters, func(x *waiter) bool { return x == w })
	r := w.request
	w.request = nil
	var notes []*note
	if granted || len(q.waiters) == 0 {
		if q.wait != 0 {
			notes = append(notes, &note{verb: unmarkNote, name: q.name, wait: q.wait})
		}
		if q.woken != 0 && q.woken != q.wait && !granted { // another is to be woken instead
			notes = append(notes, &note{verb: unmarkNote, name: q.name, wait: q.woken})
		}
		q.wait, q.woken = 0, 0
	}
	qs.client.work.note(notes...) // before the next one marks its own wait
	if first {
		q.nudge()
	}
	qs.forgetEmpty(q)
	qs.mu.Unlock()

	if r != nil && !r.abandon() {
		if a := <-r.reply; a.status == "granted" { // at the same moment
			qs.client.work.surrender(qs.client.work.endOf(r))
		}
	}
}

func (qs *queues) forgetEmpty(q *queue) {
	if len(q.waiters) == 0 && q.holder == nil && qs.byName[q.name] == q {
		delete(qs.byName, q.name)
	}
}

// hold notes a lease that this client was granted.
func (qs *queues) hold(l *Lease) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	qs.of(l.config.name).holder = l
}

// letGo notes the end of a lease. After a loss the first of the queue asks for itself; a release is on its way to hand over.
func (qs *queues) letGo(l *Lease, why error) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.byName[l.config.name]
	if q == nil || q.holder != l {
		return
	}
	q.holder = nil
	if !errors.Is(why, ErrReleased) {
		q.nudge()
	}
	qs.forgetEmpty(q)
}

// refused notes why the first waits; what waiting does not cure, and is not about its own options, is told to all.
func (qs *queues) refused(w *waiter, why error) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	w.queue.reason = why
	if !hopeless(why) || errors.Is(why, ErrInvalidOption) {
		return
	}
	for _, x := range w.queue.waiters {
		x.failed = why
		x.nudge()
	}
}

// reason says what a waiter waits for, as far as this process knows.
func (qs *queues) reason(w *waiter) error {
	qs.mu.Lock()
	l, why := w.queue.holder, w.queue.reason
	qs.mu.Unlock()
	if l == nil {
		return why
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	remaining := qs.client.clock.left(l.trust) + margin(l.config.ttl)
	return &HeldError{Name: l.config.name, Owner: qs.client.cfg.Owner, Token: l.token, Since: l.since, Remaining: max(remaining, time.Microsecond)}
}

// mark begins to mark the wait of a queue in the database; nil: that was done lately. A place in the line is looked at each time.
func (qs *queues) mark(w *waiter) *note {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := w.queue
	if q.wait != 0 && !w.config.fair && !q.fair && qs.client.clock.left(q.marked) > -remarkAfter {
		return nil
	}
	if q.wait == 0 {
		qs.waits++
		q.wait, q.placed = qs.waits, false
	}
	q.fair = w.config.fair
	q.marked = qs.client.clock.now()
	return &note{verb: markNote, name: q.name, wait: q.wait, fair: q.fair, answer: make(chan reply, 1)}
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

// wake takes a notification: a release has taken this mark, or found this place first. One for a wait that has ended is passed on.
func (qs *queues) wake(name string, wait int64) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.byName[name]
	if q == nil || q.wait != wait || len(q.waiters) == 0 {
		qs.client.work.note(&note{verb: unmarkNote, name: name, wait: wait})
		return
	}
	q.woken = wait
	if !q.fair {
		q.wait = 0
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
