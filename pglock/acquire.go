package pglock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/fencedlock/fencedlock/internal/holding"
)

const (
	firstPoll = 25 * time.Millisecond
	lastPoll  = 250 * time.Millisecond
)

// TryAcquire asks for a lock once. It blocks for one round trip when the database answers, for up to half a minute when it is
// silent, and at most until ctx ends; ctx bounds the asking, not the lease that may come of it. With an error no lease is left behind: what the database may have granted all the
// same is released in the background. The error is a *HeldError that says who holds the lock, a *HeldBackError after a restart
// or failover, a *LostError when the answer came too late to trust a grant, ErrReadOnly, ErrNotMigrated, ErrNotAllowed,
// ErrTokensBehind, ErrInvalidName, ErrInvalidOption, ErrOwnTransaction, ErrClosed, the cause of ctx, or what the driver says.
func (c *Client) TryAcquire(ctx context.Context, name string, opts ...Option) (*Lease, error) {
	lc, err := c.begin(ctx, name, opts)
	if err != nil {
		return nil, err
	}
	defer c.calls.Done()
	return c.attempt(ctx, lc)
}

// Acquire waits until it is granted the lock, or ctx ends; ctx bounds the waiting, not the lease. It asks again at jittered
// intervals of about 25 ms that grow to about 250 ms, and when the holder's lease may be over. Between two questions it holds nothing in the
// database. It waits through lost connections, servers that are read-only, and grants that are held back; an error that waiting
// cannot cure, such as a wrong password or a missing schema, is returned at once. When ctx ends, the error matches its cause
// and the last reason for waiting: ErrHeld, say. As with TryAcquire, an error leaves no lease behind.
func (c *Client) Acquire(ctx context.Context, name string, opts ...Option) (*Lease, error) {
	lc, err := c.begin(ctx, name, opts)
	if err != nil {
		return nil, err
	}
	defer c.calls.Done()
	var reason error
	for tries := 0; ; tries++ {
		l, err := c.attempt(ctx, lc)
		if err == nil {
			return l, nil
		}
		if ctx.Err() != nil {
			if !errors.Is(err, context.Cause(ctx)) {
				reason = err
			}
			return nil, waited(ctx, name, reason)
		}
		if hopeless(err) {
			return nil, err
		}
		reason = err
		select {
		case <-time.After(pause(tries, err)):
		case <-ctx.Done():
			return nil, waited(ctx, name, reason)
		case <-c.closing.Done():
			return nil, ErrClosed
		}
	}
}

// begin checks what a call was given, and enters it.
func (c *Client) begin(ctx context.Context, name string, opts []Option) (leaseConfig, error) {
	lc, err := c.leaseConfig(name, opts)
	if err == nil && holding.Is(ctx, c.cfg.Schema, name) {
		err = fmt.Errorf("%w: lock %q", ErrOwnTransaction, name)
	}
	if err == nil && !c.enter() {
		err = ErrClosed
	}
	return lc, err
}

// attempt sends one acquisition, with an id of its own, and turns the reply into a lease or an error.
func (c *Client) attempt(ctx context.Context, lc leaseConfig) (*Lease, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("pglock: lock %q: %w", lc.name, context.Cause(ctx))
	}
	r := newRequest(lc)
	c.work.ask(r)
	var a reply
	select {
	case a = <-r.reply:
	case <-ctx.Done():
		if r.abandon() {
			return nil, fmt.Errorf("pglock: lock %q: %w", lc.name, context.Cause(ctx))
		}
		a = <-r.reply // it came at the same moment
	case <-c.closing.Done():
		if r.abandon() {
			return nil, ErrClosed
		}
		a = <-r.reply
	}
	if a.status == "granted" {
		return newLease(ctx, c, r, a)
	}
	return nil, c.refusal(lc, a)
}

func (c *Client) refusal(lc leaseConfig, a reply) error {
	switch a.status {
	case "":
		return prefixed(fmt.Sprintf("lock %q", lc.name), a.err)
	case "held", "kept":
		return &HeldError{Name: lc.name, Owner: a.owner, Token: a.token, Since: a.since, Remaining: a.remaining, Over: a.status == "kept"}
	case "retry": // free, but just now locked by another
		return &HeldError{Name: lc.name, Owner: a.owner, Since: a.since}
	case "spent":
		return &LostError{Name: lc.name, Cause: Expired}
	case "held_back":
		c.heldBack(a.remaining, a.owner)
		return &HeldBackError{Name: lc.name, Remaining: a.remaining, Reason: a.owner}
	case "stale":
		return fmt.Errorf("%w: this client has seen %d; let the owner run raise_token_floor(%d) in schema %q", ErrTokensBehind, c.seen.Load(), c.seen.Load(), c.cfg.Schema)
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

// jitter is between half of d and one and a half of it, so that waiters do not march in step.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// waited is the error of a wait that ctx ended: it matches the cause of ctx, and the last reason for waiting.
func waited(ctx context.Context, name string, reason error) error {
	if reason == nil {
		return fmt.Errorf("pglock: wait for lock %q: %w", name, context.Cause(ctx))
	}
	return fmt.Errorf("pglock: wait for lock %q: %w; last: %w", name, context.Cause(ctx), prefixed("", reason))
}
