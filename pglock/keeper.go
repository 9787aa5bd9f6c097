package pglock

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// wallEvery is how often the wall clock is looked at: timers stand still while a machine is suspended.
	wallEvery = time.Second

	// minAttempt is how long a renewal gets at least, before its connection is given up for a new one.
	minAttempt = 500 * time.Millisecond

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

	mu     sync.Mutex
	held   map[*Lease]struct{}
	next   time.Duration // on the monotonic clock: when run looks next
	wake   chan struct{} // has room for one
	failed int           // attempts in vain since the last one that worked
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
	if sooner {
		k.nudge()
	}
}

func (k *keeper) remove(l *Lease) {
	k.mu.Lock()
	delete(k.held, l)
	k.mu.Unlock()
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
	var attempt chan struct{} // closed at the end of the attempt under way; nil: none is
	for {
		if due := k.due(); len(due) > 0 && attempt == nil {
			done := make(chan struct{})
			go func() { defer close(done); k.renew(ctx, due) }()
			attempt = done
		}
		wait := k.plan(attempt != nil)
		timer.Reset(wait)
		select {
		case <-attempt:
			attempt = nil
		case <-k.wake:
		case <-timer.C:
			if attempt == nil && wait == idleAfter {
				k.session.close()
			}
		case <-ctx.Done():
			if attempt != nil {
				<-attempt
			}
			return
		}
	}
}

// due ends the leases whose trust is over by either clock, and answers those to renew now: if one is due, so is every other
// that has half of its time behind it, and from then on they go together.
func (k *keeper) due() []*Lease {
	var due, soon []*Lease
	for _, l := range k.all() {
		l.mu.Lock()
		left := k.client.clock.left(l.renewAt)
		over := l.over != nil || k.client.clock.left(l.trust) <= 0
		manual := l.config.manual && len(l.waiters) == 0
		l.mu.Unlock()
		switch {
		case over:
			l.look()
		case manual:
		case left <= 0:
			due = append(due, l)
		case left <= l.config.renewEvery/2:
			soon = append(soon, l)
		}
	}
	if len(due) == 0 {
		return nil
	}
	return append(due, soon...)
}

// plan says how long run may sleep.
func (k *keeper) plan(busy bool) time.Duration {
	now := k.client.clock.now()
	wait := idleAfter
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.held) > 0 {
		wait = wallEvery
	}
	for l := range k.held {
		if busy {
			break // what is due waits for the attempt under way
		}
		l.mu.Lock()
		if !l.config.manual || len(l.waiters) > 0 {
			wait = min(wait, k.client.clock.left(l.renewAt))
		}
		l.mu.Unlock()
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

// renew makes one attempt. A failed one is no loss: the leases are due again shortly, until their trust ends.
func (k *keeper) renew(ctx context.Context, due []*Lease) {
	ctx, cancel := context.WithTimeout(ctx, k.patience(due))
	defer cancel()
	sent, answers, err := k.ask(ctx, due)
	if err == nil {
		k.failed = 0
		for i, l := range due {
			l.renewed(sent, answers[i])
		}
		return
	}
	k.failed++
	err = explain(k.client.cfg.Schema, err)
	level := slog.LevelWarn
	if k.failed > 1 {
		level = slog.LevelDebug // said before
	}
	k.client.log.Log(ctx, level, "pglock: renewal failed, trying again until the leases lapse", "leases", len(due), "error", err)
	for _, l := range due {
		l.unanswered(backoff(k.failed+3), err)
	}
}

// patience is how long an attempt may take: the time between renewals of the most impatient lease, twice that after each
// attempt in vain, so that a silent connection is given up while there is time for another, and a slow server is served in
// the end.
func (k *keeper) patience(due []*Lease) time.Duration {
	shortest := due[0].config.renewEvery
	for _, l := range due {
		shortest = min(shortest, l.config.renewEvery)
	}
	return min(max(shortest, minAttempt)<<min(k.failed, 5), statementTimeout)
}

// An answer is what the database said of one renewal.
type answer struct {
	status    string
	remaining time.Duration
}

func (k *keeper) askDatabase(ctx context.Context, due []*Lease) (sent instant, answers []answer, err error) {
	if err := k.session.ready(ctx); err != nil {
		return sent, nil, &connectError{err}
	}
	names, ids, tokens := make([]string, len(due)), make([]acquisition, len(due)), make([]int64, len(due))
	for i, l := range due {
		names[i], ids[i], tokens[i] = l.config.name, l.id, int64(l.token)
	}
	answers = make([]answer, len(due))
	sent = k.client.clock.now() // before sending: a slow reply shortens trust, it never stretches it
	err = k.session.run(ctx, statement{k.client.sql.renew, []any{names, ids, tokens}, func(rows pgx.Rows) error {
		var ord int
		var status string
		var remaining int64
		if err := rows.Scan(&ord, &status, &remaining); err != nil {
			return err
		}
		answers[ord-1] = answer{status, microseconds(remaining)}
		return nil
	}})
	if err != nil && (k.session.broken() || readOnly(err)) {
		k.session.drop()
	}
	if mispooled(err) && !k.session.pooled {
		k.session.mispooled()
	}
	return sent, answers, err
}

// renewed takes the answer to a renewal. A lapse is final: an answer that comes after trust has ended changes nothing.
func (l *Lease) renewed(sent instant, a answer) {
	l.look()
	switch a.status {
	case "renewed":
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.over != nil {
			return
		}
		l.trust = trustAfterRenewal(sent, l.config.ttl, a.remaining)
		l.renewAt = sent.add(l.config.renewEvery)
		l.tell(nil)
	case "locked":
		l.unanswered(lockedRetry, nil)
	case "taken":
		l.end(l.lost(Taken))
	case "gone":
		l.end(l.lost(Deleted))
	default:
		l.end(l.lost(Expired))
	}
}

// unanswered makes the lease due again after a pause. err, if any, is told to those who asked for the renewal; without one
// they go on waiting.
func (l *Lease) unanswered(pause time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewAt = l.client.clock.now().add(pause)
	if err != nil {
		l.tell(err)
	}
}

// tell answers those who asked for the renewal. The caller has locked the lease.
func (l *Lease) tell(err error) {
	for _, w := range l.waiters {
		w <- err
	}
	l.waiters = nil
}
