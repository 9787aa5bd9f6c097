package pglock

import (
	"context"
	"sync"
	"time"
)

const (
	idleAfter = time.Minute // a connection that nobody used for so long is closed

	// maxRequests bounds the names in one batch: a new one takes a lock in the server's shared memory, which has room for some thousands.
	maxRequests = 1000

	maxBackoff = time.Second
)

// The work line carries what acquires and releases. One goroutine, run, talks on its connection; what is asked meanwhile
// gathers and shares the next round trip and commit. What is said about waiting, the notes, follows in a transaction of its own.
type workLine struct {
	client  *Client
	session session
	failing bool // the last batch failed, and that was logged

	mu       sync.Mutex
	requests []*request
	ends     []*surrender
	notes    []*note
	draining bool
	ended    bool          // run has returned, or is about to
	wake     chan struct{} // has room for one

	unconfirmed []string // names of leases whose end was given up while draining
	lastError   error    // why
}

func newWorkLine(c *Client) *workLine {
	return &workLine{client: c, session: session{client: c}, wake: make(chan struct{}, 1)}
}

func (w *workLine) ask(r *request) {
	w.mu.Lock()
	w.requests = append(w.requests, r)
	w.mu.Unlock()
	w.nudge()
}

// surrender ends grants. On a line that has ended they are left to end by themselves.
func (w *workLine) surrender(ends ...*surrender) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		for _, s := range ends {
			s.finish(ErrClosed)
		}
		return
	}
	w.ends = append(w.ends, ends...)
	w.nudge()
}

// drain makes run return once nothing is left to do.
func (w *workLine) drain() {
	w.mu.Lock()
	w.draining = true
	w.mu.Unlock()
	w.nudge()
}

func (w *workLine) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run is the line's goroutine, owned by the client. It returns after drain, or when ctx ends.
func (w *workLine) run(ctx context.Context) {
	defer w.session.close()
	timer := time.NewTimer(idleAfter)
	defer timer.Stop()
	for {
		b, wait, over := w.gather()
		if over {
			return
		}
		if b.size() > 0 || len(b.notes) > 0 {
			w.settle(ctx, w.withHeirs(b))
			if len(b.notes) > 0 {
				w.sendNotes(ctx, b.notes)
			}
			continue
		}
		timer.Reset(wait)
		select {
		case <-w.wake:
		case <-timer.C:
			if wait == idleAfter {
				w.session.close()
			}
		case <-ctx.Done():
			w.abort(ctx)
			return
		}
	}
}

// gather takes what is to be sent now; if nothing is, it says how long to wait, and whether the line is to end.
func (w *workLine) gather() (b batch, wait time.Duration, over bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, rows := 0, 0
	for n < len(w.requests) && (n == 0 || rows+w.requests[n].weight() <= maxRequests) {
		rows += w.requests[n].weight()
		n++
	}
	b.requests, w.requests = w.requests[:n:n], w.requests[n:]
	wait = idleAfter
	var later []*surrender
	for _, s := range w.ends {
		left := w.client.clock.left(s.again)
		if s.again.isZero() || left <= 0 {
			b.ends = append(b.ends, s)
			continue
		}
		later = append(later, s)
		wait = min(wait, left)
	}
	w.ends = later
	b.notes, w.notes = w.notes, nil
	w.ended = w.draining && b.size() == 0 && len(b.notes) == 0 && len(later) == 0
	return b, wait, w.ended
}

// withHeirs adds requests of those who wait in this process for what is about to be released: they have it in the same commit.
func (w *workLine) withHeirs(b batch) batch {
	for _, s := range b.ends {
		for _, p := range s.places {
			b.requests = append(b.requests, w.client.queues.heirs(p.name)...)
		}
	}
	return b
}

// abort answers everything that is left when the client cannot wait any longer.
func (w *workLine) abort(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.requests {
		r.answer(reply{err: ErrClosed})
	}
	for _, s := range w.ends {
		w.leave(s, context.Cause(ctx))
	}
	for _, n := range w.notes {
		n.tell(reply{err: ErrClosed})
	}
	w.requests, w.ends, w.notes, w.ended = nil, nil, nil, true
}

// later queues an end again. It is given up when the lease is over by itself, and when the line is draining and there is an
// error that waiting does not cure.
func (w *workLine) later(s *surrender, why error) {
	if w.client.clock.left(s.giveUp) <= 0 || w.isDraining() && hopeless(why) {
		w.mu.Lock()
		w.leave(s, why)
		w.mu.Unlock()
		return
	}
	s.again = w.client.clock.now().add(backoff(s.tries))
	s.tries++
	w.surrender(s)
}

// leave gives up an end without a confirmation. The caller has locked the line.
func (w *workLine) leave(s *surrender, why error) {
	if w.draining && !s.ghost {
		w.unconfirmed = append(w.unconfirmed, s.places[0].name)
		w.lastError = why
	}
	s.finish(why)
}

func (w *workLine) isDraining() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.draining
}

// backoff doubles from 2 ms with each try in vain. The first ones only wait for a transaction in flight to end.
func backoff(tries int) time.Duration {
	return min(2*time.Millisecond<<min(tries, 10), maxBackoff)
}
