package advisory

import (
	"context"
	"errors"
	"time"

	"github.com/fencedlock/fencedlock/internal/deadline"
)

// sessionGrace is what a statement on a connection of ours is given when ctx has ended.
const sessionGrace = 500 * time.Millisecond

// TryAcquire asks for a session lock once. It blocks while it connects, which takes the server tens of milliseconds, and for two round
// trips; at most until ctx ends, and half a second longer where the server is silent; without a deadline, for some 10 s. ctx bounds
// the asking, not the lock that comes of it. With an error no lock is left behind. The error is a *HeldError that says who holds
// the lock, or that this client does; ErrReentrant, ErrPooler, ErrStandby, ErrInvalidKey, ErrInvalidOption, ErrClosed, the cause of ctx, or
// what the driver says.
func (c *Client) TryAcquire(ctx context.Context, key Key, opts ...Option) (*Lock, error) {
	return c.acquire(ctx, key, opts, false)
}

// Acquire waits until it has the lock, or ctx ends; ctx bounds the waiting, not the lock. It asks again at jittered intervals of
// 25 ms that grow to 250 ms, over the connection that the lock will live on, and holds neither a snapshot nor a transaction
// between two questions. For a lock that this client holds already it waits without a connection, in turn. It waits
// through lost connections, through those that are silent for 5 s, and standbys; what waiting cannot cure, such as a pooler or a wrong
// password, is returned at once. When ctx ends, the error matches its cause and the last reason for waiting: ErrHeld, say, with who holds
// it. As with TryAcquire, an error leaves no lock behind.
func (c *Client) Acquire(ctx context.Context, key Key, opts ...Option) (*Lock, error) {
	return c.acquire(ctx, key, opts, true)
}

func (c *Client) acquire(ctx context.Context, key Key, opts []Option, wait bool) (*Lock, error) {
	r, err := newRequest(key, opts)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, explain(key, context.Cause(ctx))
	}
	if err := c.checkReentrant(ctx, key); err != nil {
		return nil, err
	}
	if !c.enter() {
		return nil, explain(key, ErrClosed)
	}
	defer c.calls.Done()
	asking, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.closing, func() { cancel(ErrClosed) })()
	leave, err := c.takeTurn(asking, key, wait)
	if err != nil {
		return nil, err
	}
	granted := false
	defer func() {
		if !granted { // or a hook of the pool has panicked
			leave()
		}
	}()
	s, err := c.obtain(asking, r, wait)
	if err != nil {
		return nil, err
	}
	granted = true
	return c.newLock(ctx, r, s, leave), nil
}

// obtain comes back with a session that holds the lock.
func (c *Client) obtain(ctx context.Context, r request, wait bool) (s *session, err error) {
	sctx, cancel := grace(ctx, sessionGrace)
	defer cancel()
	granted := false
	defer func() {
		if s != nil && !granted { // a tracer of the pool has panicked
			s.cut()
		}
	}()
	var reason error // for waiting
	for tries := 0; ; tries++ {
		var got bool
		if s == nil {
			s, err = c.dial(ctx)
		}
		if err == nil {
			got, err = s.try(sctx, r)
		}
		if got && err == nil {
			err = s.dropMark(sctx, r)
		}
		switch {
		case got && err == nil:
			granted = true
			return s, nil
		case err != nil && s != nil: // whatever it was granted goes with its connection
			s.hangUp()
			s = nil
		}
		switch {
		case err == nil: // by whom is looked up at the end, if that can be
			reason = &HeldError{Key: r.key}
		case deadline.Cause(ctx) == nil:
			reason = err
		}
		if wait && s != nil && !s.marked {
			s.putMark(sctx, r)
		}
		if wait && !hopeless(err) && pause(ctx, tries) {
			err = nil
			continue
		}
		if s != nil {
			reason, _ = s.heldBy(sctx, r.key) // an answer is lacking if it fails, nothing more
			s.goodbye()
		}
		if ctx.Err() != nil {
			return nil, waited(ctx, r.key, reason)
		}
		if errors.As(reason, new(*HeldError)) {
			return nil, reason
		}
		return nil, explain(r.key, reason)
	}
}
