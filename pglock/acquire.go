package pglock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	firstPoll = 25 * time.Millisecond
	lastPoll  = 250 * time.Millisecond

	// seldomPoll is between two questions of a waiter that a release will wake: what is missed all the same costs no more.
	seldomPoll = 2 * time.Second

	// deafPatience is after how long a waiter that hears nothing is marked all the same: releases that hand the lock to each other would
	// never leave it free for who asks now and then. Until it asks again the lock stands idle.
	deafPatience = 5 * time.Second
)

// TryAcquire asks for a lock once. It blocks for one round trip when the database answers, for up to half a minute when it is
// silent, and at most until ctx ends; ctx bounds the asking, not the lease that may come of it. With an error no lease is left behind: what the database may have granted all the
// same is released in the background. The error is a *HeldError that says who holds the lock, a *HeldBackError after a restart
// or failover, a *LostError when the answer came too late to trust a grant, ErrReadOnly, ErrNotMigrated, ErrNotAllowed,
// ErrTokensBehind, ErrInvalidName, ErrInvalidOption, ErrOwnTransaction, ErrClosed, the cause of ctx, or what the driver says.
func (c *Client) TryAcquire(ctx context.Context, name string, opts ...Option) (*Lease, error) {
	return c.TryAcquireAll(ctx, []string{name}, opts...)
}

// TryAcquireAll is TryAcquire for several names, as AcquireAll has them. The error tells one that is in the way.
func (c *Client) TryAcquireAll(ctx context.Context, names []string, opts ...Option) (*Lease, error) {
	lc, err := c.begin(ctx, names, opts)
	if err != nil {
		return nil, err
	}
	defer c.calls.Done()
	if lc.fair {
		return nil, fmt.Errorf("%w: Fair is for those who wait, and TryAcquire of lock %q does not", ErrInvalidOption, lc.name)
	}
	return c.attempt(ctx, lc)
}

// Acquire waits until it is granted the lock, or ctx ends; ctx bounds the waiting, not the lease. Calls of one client that want
// one name are served in the order in which they came: only the first asks the database, and while a lease of the client is in
// the way not even that one, since its release hands the lock over, in the same round trip and commit. (While another process
// waits too, a client is granted the lock 16 times or for 50 ms in a row, by hand-overs or because it asks again at once, and then
// the other has its turn. TryAcquire does not queue.) A call whose
// ctx ends changes nothing for those behind it.
//
// A release by another process hands the lock to the one that has waited longest, with the release's own commit: that one is notified, and
// has it. (It counts the lease from when it began to wait. Where half of that may be over it asks once more.) Its lease is of three seconds, or of
// its TTL if that is less, until the first renewal, a tenth of a second later. If it does not hear of it within the three seconds, others are
// granted the lock. (With HoldAtLeast, LockDelay, Metadata, MaxHold,
// NoRenewal, another kind, several names or a TTL below half a second it is only woken, and asks.) The client listens on one connection, made when
// a wait is not over soon, or when there are several within seconds, and closed after a minute without. Woken or not, it asks again every two seconds or so, and when the
// holder's lease may be over. Where notifications do not arrive (behind a transaction pooler, say: see Config.ListenURL; or while
// the connection is being made) it asks at jittered intervals of about 25 ms that grow to about 250 ms, and is granted what it finds
// free; after five seconds releases hand the lock to it as well. Between two questions it holds nothing in the database.
//
// It waits through lost connections, servers that are read-only, and grants that are held back; an error that waiting
// cannot cure, such as a wrong password, a missing schema or a sequence of tokens that has ended, is returned at once, to all calls that
// wait for the name. When ctx ends, the error matches its cause and the last reason for waiting: ErrHeld, say. A call that waits behind others learns only
// in its turn that its TTL is above the cap. As with TryAcquire, an error leaves no lease behind.
func (c *Client) Acquire(ctx context.Context, name string, opts ...Option) (*Lease, error) {
	return c.AcquireAll(ctx, []string{name}, opts...)
}

// AcquireAll waits until it is granted all of the names at once, in one statement and with one token, or ctx ends. It holds none while
// it waits for another, so it cannot deadlock with others, whatever the order of their names; among calls of one client it has
// its place in the queues of all its names. The lease is one: it is renewed, lost and released as a whole. Options apply to
// each name; Fair is for one name alone. 1 to 1000 names, none of them twice, or the error is ErrInvalidName. Otherwise it is as Acquire.
//
// A call that wants many names which are in demand may wait long: other processes do not stand back for it. Calls of the same client
// for one of its names that come later do, also while another of its names is in the way.
func (c *Client) AcquireAll(ctx context.Context, names []string, opts ...Option) (*Lease, error) {
	lc, err := c.begin(ctx, names, opts)
	if err != nil {
		return nil, err
	}
	defer c.calls.Done()
	if ctx.Err() != nil {
		return nil, waited(ctx, lc.name, nil)
	}
	w := c.queues.enter(lc)
	l, err := c.wait(ctx, w)
	c.queues.leave(w, err == nil)
	return l, err
}

// wait is the life of a waiter: it asks when that is its part, and else sleeps until it is.
func (c *Client) wait(ctx context.Context, w *waiter) (*Lease, error) {
	timer := time.NewTimer(idleAfter)
	defer timer.Stop()
	for tries := 0; ; {
		r, rest, failed := c.queues.turn(w)
		if failed != nil {
			return nil, failed
		}
		if r == nil && rest == 0 {
			if r, rest, failed = c.line(ctx, w, tries); ctx.Err() == nil && hopeless(failed) {
				return nil, failed
			}
			tries++
		}
		if r != nil {
			l, err := c.answered(ctx, w, r)
			if err == nil {
				return l, nil
			}
			if ctx.Err() == nil && hopeless(err) {
				return nil, err
			}
			rest = c.rest(ctx, w, tries, err)
			tries++
		}
		if own := c.own(ctx, c.queues.reason(w)); own != nil {
			return nil, own
		}
		timer.Reset(rest)
		select {
		case <-w.again:
		case <-timer.C:
		case <-ctx.Done():
			if r := c.queues.underway(w); r != nil { // it may be answered
				if l, err := c.answered(ctx, w, r); err == nil {
					return l, nil
				}
			}
			return nil, waited(ctx, w.config.name, c.queues.reason(w))
		case <-c.closing.Done():
			return nil, closedFor(w.config)
		}
	}
}

// answered waits for the answer to what is on its way for a waiter.
func (c *Client) answered(ctx context.Context, w *waiter, r *request) (*Lease, error) {
	a, l, err := c.await(ctx, r)
	if err != nil && !errors.Is(err, errAbandoned) {
		c.queues.refused(w, err)
	}
	c.queues.told(w, r, a)
	return l, err
}

// begin checks what a call was given, and enters it.
func (c *Client) begin(ctx context.Context, names []string, opts []Option) (leaseConfig, error) {
	lc, err := c.leaseConfig(slices.Clone(names), opts)
	if err == nil {
		err = c.checkReentrant(ctx, lc)
	}
	if err == nil && !c.enter() {
		err = closedFor(lc)
	}
	return lc, err
}

// closedFor says what a closed client was asked for.
func closedFor(lc leaseConfig) error { return prefixed(fmt.Sprintf("lock %q", lc.name), ErrClosed) }

// attempt sends one acquisition, with an id of its own, and turns the reply into a lease or an error.
func (c *Client) attempt(ctx context.Context, lc leaseConfig) (*Lease, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("pglock: lock %q: %w", lc.name, context.Cause(ctx))
	}
	r := newRequest(lc)
	c.work.ask(r)
	_, l, err := c.await(ctx, r)
	if errors.Is(err, errAbandoned) && c.closing.Err() != nil {
		return nil, closedFor(lc)
	}
	if errors.Is(err, errAbandoned) {
		return nil, fmt.Errorf("pglock: lock %q: %w", lc.name, context.Cause(ctx))
	}
	if own := c.own(ctx, err); own != nil {
		return nil, own
	}
	return l, err
}

// errAbandoned: the caller's ctx ended, or the client is closing, before there was an answer.
var errAbandoned = errors.New("abandoned")

// await waits for the answer to a request, and turns it into a lease or an error.
func (c *Client) await(ctx context.Context, r *request) (a reply, l *Lease, err error) {
	select {
	case a = <-r.reply:
	case <-ctx.Done():
		if r.abandon() {
			return a, nil, errAbandoned
		}
		a = <-r.reply // it came at the same moment
	case <-c.closing.Done():
		if r.abandon() {
			return a, nil, errAbandoned
		}
		a = <-r.reply
	}
	if a.status == "granted" {
		l, err = newLease(ctx, c, r, a)
		return a, l, err
	}
	return a, nil, c.refusal(r.leaseConfig, a)
}

func (c *Client) refusal(lc leaseConfig, a reply) error {
	switch a.status {
	case "":
		return prefixed(fmt.Sprintf("lock %q", lc.name), a.err)
	case "held", "kept", "marked":
		held := &HeldError{Name: cmp.Or(a.name, lc.name), Owner: a.owner, Token: a.token, Since: a.since, Remaining: a.remaining, Over: a.over}
		if !a.over {
			held.Permits = max(int(lc.kind), 0)
		}
		return held
	case "other_kind":
		return &OtherKindError{Name: a.name, Owner: a.owner, Kind: kind(a.slot).String(), Asked: lc.kind.String()}
	case "retry", "queued": // free, but just now locked by another, or another's turn in the line
		return &HeldError{Name: cmp.Or(a.name, lc.name), Owner: a.owner, Token: a.token, Since: a.since}
	case "spent":
		return &LostError{Name: lc.name, Cause: Expired}
	case "held_back":
		c.heldBack(a.remaining, a.owner)
		return &HeldBackError{Name: lc.name, Remaining: a.remaining, Reason: a.owner, schema: c.cfg.Schema}
	case "stale":
		seen := c.seen.Load()
		return fmt.Errorf("%w: lock %q: this client has seen %d: as the owner of the schema: %s", ErrTokensBehind, lc.name, seen, c.in(fmt.Sprintf("SELECT pglock.raise_token_floor(%d)", seen)))
	case "ttl_too_long":
		return c.ttlTooLong(lc, a.remaining)
	}
	return fmt.Errorf("%w: the database refuses lock %q with a TTL of %v (%s)", ErrInvalidOption, lc.name, lc.ttl, a.status)
}

// pause is how long to wait before asking again: longer each time, but not beyond the moment at which the lock may be free.
func pause(tries int, err error) time.Duration {
	d := jitter(min(firstPoll<<min(tries, 10), lastPoll))
	var held *HeldError
	if errors.As(err, &held) {
		if held.Remaining == 0 {
			return jitter(4 * time.Millisecond << min(tries, 6))
		}
		return min(d, held.Remaining+jitter(5*time.Millisecond))
	}
	var back *HeldBackError
	if errors.As(err, &back) {
		return min(back.Remaining, time.Second) + jitter(10*time.Millisecond) // somebody may end it earlier
	}
	return d
}

// rest is how long a waiter may sleep after a refusal. Where a release will wake it, that is long.
func (c *Client) rest(ctx context.Context, w *waiter, tries int, err error) time.Duration {
	d := pause(tries, err)
	var held *HeldError
	if !errors.As(err, &held) {
		return d
	}
	if w.config.fair { // the next is to see its place
		return pause(min(tries, 2), &HeldError{})
	}
	hears := c.listener.refused()
	marked := c.queues.isMarked(w)
	if len(w.queues) > 1 && held.Remaining > 0 && (hears || c.queues.isShared(w)) {
		switch c.mark(ctx, w).status {
		case "marked":
			marked = true
		case "retry":
			return pause(tries, &HeldError{}) // it is changing hands
		}
	}
	if marked && hears {
		return min(jitter(c.seldom), held.Remaining+jitter(5*time.Millisecond))
	}
	return d
}

// line takes a place in the line, for a fair waiter, or looks at it. A request comes back if it is this one's turn.
func (c *Client) line(ctx context.Context, w *waiter, tries int) (r *request, rest time.Duration, err error) {
	hears := c.listener.hears(true)
	a := c.mark(ctx, w)
	switch a.status {
	case "retry":
		return c.queues.ask(w), 0, nil
	case "marked", "queued":
		c.queues.refused(w, c.refusal(w.config, a))
		rest = jitter(min(firstPoll<<min(tries, 10), lastPoll))
		if hears {
			rest = jitter(c.seldom)
		}
		return nil, min(rest, a.remaining+jitter(5*time.Millisecond)), nil
	}
	if a.err == nil { // ctx has ended, or the client is closing
		return nil, idleAfter, nil
	}
	err = c.refusal(w.config, a)
	c.queues.refused(w, err)
	return nil, pause(tries, err), err
}

// mark lets the next release by another process wake this one. It blocks for a round trip at most.
func (c *Client) mark(ctx context.Context, w *waiter) (a reply) {
	n := c.queues.mark(w)
	if n == nil {
		return reply{status: "marked"}
	}
	c.work.note(n)
	select {
	case a = <-n.answer:
	case <-ctx.Done():
	case <-c.closing.Done():
	}
	c.queues.marked(w, n, a.status)
	return a
}

// jitter is between half of d and one and a half of it, so that waiters do not march in step.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// waited is the error of a wait that ctx ended: it matches the cause of ctx, and the last reason for waiting.
func waited(ctx context.Context, name string, reason error) error {
	if reason == nil {
		return fmt.Errorf("pglock: wait for lock %q: %w", name, context.Cause(ctx))
	}
	return fmt.Errorf("pglock: wait for lock %q: %w; last: %w", name, context.Cause(ctx), prefixed("", reason))
}
