package pglock

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencedlock/fencedlock/fence"
)

const (
	// wallEvery is how often the wall clock is looked at: timers stand still while a machine is suspended.
	wallEvery = time.Second

	// minAttempt is how long a renewal gets at least, before its connection is given up for a new one.
	minAttempt = 100 * time.Millisecond

	// listenFrom is for how long a lease must have been held, and what its interval of renewals must be at least, to want to hear of a
	// revocation before the next renewal.
	listenFrom = 2 * time.Second

	// lockedRetry is the pause before asking again for a lease whose row somebody has locked.
	lockedRetry = 20 * time.Millisecond
)

// The keeper renews the leases of a client, all that are due in one statement, on a connection that carries nothing else: a
// grant that hangs must not cost the others their leases. run decides; attempts run beside it, one at a time, so that it never
// waits for the database.
type keeper struct {
	client  *Client
	session session                                                                             // of the attempt under way
	ask     func(ctx context.Context, due []*Lease) (sent instant, answers []answer, err error) // askDatabase, but for tests

	mu      sync.Mutex
	held    map[*Lease]struct{}
	next    time.Duration // on the monotonic clock: when run looks next
	wake    chan struct{} // has room for one
	failing bool          // the last attempt failed, and that was logged; of the attempt under way
}

// An attempt is one statement on its way, for the leases that are marked as renewing.
type attempt struct {
	done   chan struct{} // closed at its end
	cancel context.CancelFunc
	enough instant // from then on it makes way for leases that have become due meanwhile
	over   bool    // it was told to
}

func newKeeper(c *Client) *keeper {
	k := &keeper{client: c, session: session{client: c}, held: map[*Lease]struct{}{}, wake: make(chan struct{}, 1)}
	k.ask = k.askDatabase
	return k
}

func (k *keeper) add(l *Lease) {
	k.mu.Lock()
	k.held[l] = struct{}{}
	sooner := l.renewAt.mono < k.next
	k.mu.Unlock()
	if l.ended() { // before it was here to be removed
		k.remove(l)
		return
	}
	if sooner {
		k.nudge()
	}
}

func (k *keeper) remove(l *Lease) {
	k.mu.Lock()
	delete(k.held, l)
	k.mu.Unlock()
}

// holds says whether a lease of this client is the one with that token.
func (k *keeper) holds(name string, token fence.Token) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for l := range k.held {
		if l.token == token && l.has(name) {
			return true
		}
	}
	return false
}

// renewNow makes a lease due, and has done told how it went.
func (k *keeper) renewNow(l *Lease, done chan<- error) {
	l.mu.Lock()
	if l.over != nil {
		done <- l.over
	} else {
		l.waiters = append(l.waiters, done)
		l.renewAt = k.client.clock.now()
	}
	l.mu.Unlock()
	k.nudge()
}

func (k *keeper) nudge() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// run is the keeper's goroutine, owned by the client. It returns when ctx ends, after the attempt under way.
func (k *keeper) run(ctx context.Context) {
	defer k.session.close()
	timer := time.NewTimer(idleAfter)
	defer timer.Stop()
	var a *attempt            // under way
	var ended <-chan struct{} // its end; nil while there is none
	for {
		switch due := k.due(); {
		case a == nil && len(due) > 0:
			a = k.begin(ctx, due)
			ended = a.done
		case a != nil && len(due) > 0 && !a.over && k.client.clock.left(a.enough) <= 0:
			a.over = true
			a.cancel()
		}
		wait := k.plan(a)
		timer.Reset(wait)
		select {
		case <-ended:
			a, ended = nil, nil
		case <-k.wake:
		case <-timer.C:
			if a == nil && wait == idleAfter {
				k.session.close()
			}
		case <-ctx.Done():
			if a != nil {
				<-a.done
			}
			return
		}
	}
}

// due ends the leases whose trust is over by either clock, and answers those to renew now: if one is due, so is every other
// that has half of its time behind it, and from then on they go together. Those of the attempt under way are not among them.
func (k *keeper) due() []*Lease {
	var due, soon []*Lease
	for _, l := range k.all() {
		l.mu.Lock()
		left := k.client.clock.left(l.renewAt)
		over := l.over != nil || k.client.clock.left(l.trust) <= 0
		waits := !l.renewing && l.isRenewed()
		l.mu.Unlock()
		switch {
		case over:
			l.look()
		case !waits:
		case left <= 0:
			due = append(due, l)
		case left <= l.config.renewEvery/2:
			soon = append(soon, l)
		}
	}
	if len(due) == 0 {
		return nil
	}
	due = append(due, soon...)
	slices.SortFunc(due, func(a, b *Lease) int { return strings.Compare(a.config.name, b.config.name) }) // neighbours are on one page
	return due
}

// plan says how long run may sleep.
func (k *keeper) plan(a *attempt) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.client.clock.now()
	wait := idleAfter
	if len(k.held) > 0 {
		wait = wallEvery
	}
	for l := range k.held {
		l.mu.Lock()
		if !l.renewing && l.isRenewed() {
			wait = min(wait, k.client.clock.left(l.renewAt))
		}
		l.mu.Unlock()
	}
	switch {
	case a != nil && a.over:
		wait = wallEvery // its end wakes run
	case a != nil:
		wait = min(max(wait, k.client.clock.left(a.enough)), wallEvery) // the wall clock is looked at whatever hangs
	}
	wait = max(wait, 0)
	k.next = now.mono + wait
	return wait
}

func (k *keeper) all() []*Lease {
	k.mu.Lock()
	defer k.mu.Unlock()
	held := make([]*Lease, 0, len(k.held))
	for l := range k.held {
		held = append(held, l)
	}
	return held
}

// begin starts an attempt. It may take half of what the lease that is nearest to its end has left, so that a silent connection
// is given up while there is time for another; twice that after each attempt in vain, so that a slow server is served in the
// end.
func (k *keeper) begin(ctx context.Context, due []*Lease) *attempt {
	patience, least := statementTimeout, statementTimeout
	for _, l := range due {
		l.mu.Lock()
		l.renewing = true
		again := min(l.failed, 6)
		patience = min(patience, max(k.client.clock.left(l.trust)/2, minAttempt)<<again)
		least = min(least, minAttempt<<again)
		l.mu.Unlock()
	}
	ctx, giveWay := context.WithCancelCause(ctx)
	ctx, cancel := context.WithTimeout(ctx, patience)
	a := &attempt{done: make(chan struct{}), cancel: func() { giveWay(errGaveWay) }, enough: k.client.clock.now().add(least)}
	go func() {
		defer close(a.done)
		defer giveWay(nil)
		defer cancel()
		k.renew(ctx, due)
	}()
	return a
}

// errGaveWay ends an attempt that hangs, for another lease to be renewed in time.
var errGaveWay = errors.New("the connection was given up for another, since the database did not answer")

// renew makes one attempt. A failed one is no loss: the leases are due again shortly, until their trust ends.
func (k *keeper) renew(ctx context.Context, due []*Lease) {
	sent, answers, err := k.ask(ctx, due)
	if err == nil {
		k.failing = false
		k.listen(due)
		for i, l := range due {
			l.renewed(sent, answers[i])
		}
		return
	}
	if errors.Is(context.Cause(ctx), errGaveWay) {
		err = errGaveWay // no ctx of a caller's was cancelled
	}
	err = explain(k.client.cfg.Schema, err)
	level := slog.LevelWarn
	if k.failing || errors.Is(context.Cause(ctx), context.Canceled) {
		level = slog.LevelDebug // said before, or the client is closing
	}
	k.failing = true
	k.client.log.Log(ctx, level, "pglock: renewal failed, trying again until the leases lapse", "leases", len(due), "error", err)
	for _, l := range due {
		l.unanswered(err)
	}
}

// listen lets a revocation of leases that are renewed seldom be heard at once. It is asked for once for each, so that a client behind
// a pooler does not try for ever.
func (k *keeper) listen(due []*Lease) {
	seldom, want := false, false
	for _, l := range due {
		if l.config.renewEvery < listenFrom || k.client.clock.left(l.asked) > -listenFrom {
			continue
		}
		l.mu.Lock()
		seldom, want = true, want || !l.told
		l.told = true
		l.mu.Unlock()
	}
	if seldom {
		k.client.listener.hears(want)
	}
}

// revoked takes the hint that a grant was revoked, from whoever gives it: the answer to a renewal tells whether that is so. What is
// not renewed is not renewed for a hint either.
func (k *keeper) revoked(token int64) {
	for _, l := range k.all() {
		l.mu.Lock()
		if int64(l.token) == token && l.isRenewed() {
			l.renewAt = k.client.clock.now()
		}
		l.mu.Unlock()
	}
	k.nudge()
}
