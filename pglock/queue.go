package pglock

import (
	"errors"
	"slices"
	"sync"
	"time"
)

// maxHeirs bounds how many readers are handed a lock in one batch: each is looked for a slot.
const maxHeirs = 100

// The queues of a client are who waits in this process, for each name in the order in which they came. Only the first of a
// queue asks the database, and nobody while the process holds the lock itself: its release hands the lock to the first.
// Nothing is sent while queues.mu is held; work.mu may be locked under it, and not the other way round.
type queues struct {
	client *Client

	mu     sync.Mutex
	byName map[string]*queue // those with a waiter or a holder, and those that are kept
	kept   []*queue
	waits  int64 // the number of the last mark
}

type queue struct {
	client  *Client
	name    string
	waiters []*waiter
	holder  *Lease // of this client; nil while it holds none that it trusts
	reason  error  // why the first waits, as it was told last

	wait   int64   // the number of the mark in the database; 0: none
	fair   bool    // it is a place in the line, which stays until it is given up
	kind   kind    // what it waits for
	placed bool    // it was made, or may have been
	marked instant // when it was made
	woken  int64   // the number of the mark for which a release has woken this client; 0: none since somebody was answered

	streak      int     // grants in a row to this client, while another process waited
	streakBegan instant // the first of them
	streakLast  instant
	yield       instant // until then another process goes first
	kept        bool    // for the sake of its streak, though nobody waits or holds
}

// A waiter is one call of Acquire. One that wants several names is in the queues of all, and asks when it is first in each.
type waiter struct {
	config leaseConfig
	queues []*queue
	since  instant
	again  chan struct{} // has room for one: look what is new

	// Under queues.mu.
	queue    *queue      // of the name that is in the way
	refused  bool        // it was told that it has to wait
	marked   bool        // when it asked last, its wait was marked
	isShared bool        // readers are in the way: its mark gives it its turn, also where no notification comes
	granted  bool        // it has what it wants, and is about to leave
	request  *request    // on its way for this waiter, by its own asking or by a hand-over
	id       acquisition // what it asks for each time, until that can be granted no more: a release may grant it meanwhile
	made     instant     // when it was; zero: too long ago for what a release grants to be had without asking
	promised bool        // a mark may say so
	failed   error       // what the first was told and waiting does not cure
}

func newQueues(c *Client) *queues { return &queues{client: c, byName: map[string]*queue{}} }

// of answers the queue of a name. The caller has locked the queues.
func (qs *queues) of(name string) *queue {
	q := qs.byName[name]
	if q == nil {
		q = &queue{client: qs.client, name: name}
		qs.byName[name] = q
	}
	return q
}

func (qs *queues) enter(lc leaseConfig) *waiter {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	w := &waiter{config: lc, again: make(chan struct{}, 1), since: qs.client.clock.now()}
	for _, name := range lc.names {
		q := qs.of(name)
		q.waiters = append(q.waiters, w)
		w.queues = append(w.queues, q)
	}
	w.queue = w.queues[0]
	return w
}

// isNext says whether a waiter is to ask. Where several may hold a name, those who come ask at once, as long as nobody before them was
// refused. The caller has locked the queues.
func (w *waiter) isNext() bool {
	for _, q := range w.queues {
		for _, before := range q.waiters {
			if before == w {
				break
			}
			if w.config.kind == alone || w.refused || before.config.kind != w.config.kind || before.refused {
				return false
			}
		}
	}
	return true
}

// isHeld says whether this client itself holds what a waiter wants. The caller has locked the queues.
func (w *waiter) isHeld() bool {
	return slices.ContainsFunc(w.queues, func(q *queue) bool { return q.holder != nil })
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
	wait = idleAfter
	mine := w.request == nil && w.isNext()
	switch {
	case !mine:
	case w.config.fair:
		mine, wait = false, 0
	case w.isHeld():
		mine = false
		if w.config.kind > 0 && w.failed == nil {
			w.failed = &OtherKindError{Name: w.config.name, Owner: qs.client.cfg.Owner, Kind: alone.String(), Asked: w.config.kind.String()}
		}
	default:
		for _, q := range w.queues {
			if left := q.standBack(); left > 0 {
				mine, wait = false, left
			}
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
	hears := qs.client.listener.hears(false)
	qs.mu.Lock()
	r := w.request
	mine := r == nil // and not handed over meanwhile
	if mine {
		r = newRequest(w.config)
		r.afterWake = w.isWoken()
		if w.config.isPlain() {
			w.promise(r.id)
			r.id = w.id
		}
		if q := w.queue; (hears || w.isShared || qs.client.clock.left(w.since) < -qs.client.patience) && !w.config.fair && len(w.queues) == 1 && q.waiters[0] == w {
			if q.wait == 0 {
				qs.waits++
				q.wait, q.placed = qs.waits, false
			}
			r.wait, q.kind, q.fair = q.wait, w.config.kind, false
			w.promised = w.config.isPlain()
		}
		w.request = r
	}
	qs.mu.Unlock()
	if mine {
		qs.client.work.ask(r)
	}
	return r
}

// isWoken says whether a release had woken this client for what a waiter wants. The caller has locked the queues.
func (w *waiter) isWoken() bool {
	return slices.ContainsFunc(w.queues, func(q *queue) bool { return q.woken != 0 })
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
	if w.request == r {
		w.request = nil
	}
	w.granted, w.marked = a.status == "granted", a.status == "marked"
	if r.id == w.id && (a.status == "granted" || a.status == "spent" || a.disowned) { // the waiter has it, or it is given back
		w.id, w.promised = acquisition{}, false
	}
	w.isShared = w.isShared || w.config.kind == alone && a.status == "held" && a.slot == int(shared)
	for _, q := range w.queues {
		if a.status != "" && r.afterWake && (a.name == "" || a.name == q.name) {
			q.woken = 0
		}
		switch {
		case !w.granted:
			q.streak = 0
		case a.awaited:
			q.lengthen()
			fallthrough
		default:
			q.yield = instant{}
		}
		if r.wait != 0 {
			w.marked = w.marked && q.wait == r.wait
			q.answered(r.wait, a.status)
		}
	}
}

// heirs answers requests for those who are to have a lock that is about to be released, which are several if they share it; none if
// nobody waits for it here, or if another process is to go first.
func (qs *queues) heirs(name string) (all []*request) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.byName[name]
	if q == nil || len(q.waiters) == 0 || q.holder != nil {
		return nil
	}
	w := q.waiters[0]
	if w.config.fair || len(w.queues) > 1 { // it may be another's turn, or another name is in the way
		w.nudge()
		return nil
	}
	if overdue := q.isOverdue(); q.standBack() > 0 || overdue {
		w.nudge()
		return nil
	}
	for i, w := range q.waiters {
		if len(all) == maxHeirs || i > 0 && (w.config.kind != shared || q.waiters[0].config.kind != shared || w.config.fair || len(w.queues) > 1) {
			break
		}
		if w.granted || w.request != nil { // it has it, or is asking by itself
			w.nudge()
			continue
		}
		w.request = newRequest(w.config)
		w.request.afterWake = q.woken != 0
		if w.config.isPlain() {
			w.promise(w.request.id)
			w.request.id = w.id
		}
		if i == 0 {
			w.request.wait = q.wait
			w.promised = w.promised || q.wait != 0 && w.config.isPlain()
		}
		w.nudge()
		all = append(all, w.request)
	}
	return all
}

// leave takes a waiter out; the next one takes its place. What may be on its way for it is given back.
func (qs *queues) leave(w *waiter, granted bool) {
	qs.mu.Lock()
	r := w.request
	w.request = nil
	for _, q := range w.queues {
		first := q.waiters[0] == w
		q.waiters = slices.DeleteFunc(q.waiters, func(x *waiter) bool { return x == w })
		// Before the next one marks its own wait. A mark of another kind would be in its way.
		var notes []*note
		if granted && first || len(q.waiters) == 0 || q.waiters[0].config.kind != q.kind {
			notes = q.unmark(granted)
		}
		if w.promised && !granted {
			notes = q.disown(w, notes)
		}
		qs.client.work.note(notes...)
		if first {
			q.nudge()
		}
		qs.forgetEmpty(q)
	}
	qs.mu.Unlock()

	if r != nil && !r.abandon() {
		if a := <-r.reply; a.status == "granted" { // at the same moment
			qs.client.work.surrender(qs.client.work.endOf(r))
		}
	}
}

func (qs *queues) forgetEmpty(q *queue) {
	if q.streak > 0 && !q.kept {
		q.kept = true
		qs.kept = append(qs.kept, q)
	}
	if !q.kept && len(q.waiters) == 0 && q.holder == nil && qs.byName[q.name] == q {
		delete(qs.byName, q.name)
	}
}

// hold notes a lease that this client was granted.
func (qs *queues) hold(l *Lease) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if l.config.kind != alone { // others may hold it too
		return
	}
	for _, p := range l.places {
		qs.of(p.name).holder = l
	}
}

// letGo notes the end of a lease. After a loss the first of the queue asks for itself; a release is on its way to hand over.
func (qs *queues) letGo(l *Lease, why error) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for _, p := range l.places {
		q := qs.byName[p.name]
		if q == nil || q.holder != l {
			continue
		}
		q.holder = nil
		if !errors.Is(why, ErrReleased) {
			q.nudge()
		}
		qs.forgetEmpty(q)
	}
}

// refused notes why the first waits; what waiting does not cure, and is not about its own options, is told to all.
func (qs *queues) refused(w *waiter, why error) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	w.refused = true
	var held *HeldError
	if errors.As(why, &held) && len(w.queues) > 1 {
		for _, q := range w.queues {
			if q.name == held.Name {
				w.queue = q
			} else { // it is free, and this one does not take it yet
				qs.client.work.note(q.unmark(false)...)
			}
		}
	}
	w.queue.reason = why
	if !hopeless(why) || errors.Is(why, ErrInvalidOption) || errors.Is(why, ErrOtherKind) {
		return
	}
	for _, q := range w.queues {
		for _, x := range q.waiters {
			x.failed = why
			x.nudge()
		}
	}
}

// reason says what a waiter waits for, as far as this process knows.
func (qs *queues) reason(w *waiter) error {
	qs.mu.Lock()
	why := w.queue.reason
	var l *Lease
	var name string
	for _, q := range w.queues {
		if q.holder != nil {
			l, name = q.holder, q.name
		}
	}
	qs.mu.Unlock()
	if l == nil {
		return why
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	remaining := qs.client.clock.left(l.trust) + margin(l.config.ttl)
	return &HeldError{Name: name, Owner: qs.client.cfg.Owner, Token: l.token, Since: l.since, Remaining: max(remaining, time.Microsecond)}
}
