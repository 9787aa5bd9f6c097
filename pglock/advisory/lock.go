package advisory

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// releaseTimeout bounds how long a release waits for its confirmation.
const releaseTimeout = 5 * time.Second

// A Lock is a session lock that was granted, with the connection that it lives on. It has no fencing token: what its holder
// writes after it was lost, nobody refuses. Safe for concurrent use; the zero Lock behaves as one that was released.
type Lock struct {
	client   *Client
	request  request
	session  *session
	leave    func() // gives up the turn
	ctx      context.Context
	cancel   context.CancelCauseFunc // the first cause is the end of the lock
	released atomic.Bool             // Release was called

	done    chan struct{} // closed when nothing of the lock is left here
	outcome error         // of the release, once done
}

func (c *Client) newLock(ctx context.Context, r request, s *session, leave func()) *Lock {
	l := &Lock{client: c, request: r, session: s, leave: leave, done: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancelCause(withLock(context.WithoutCancel(ctx), l))
	c.mu.Lock()
	c.locks[l] = struct{}{}
	c.mu.Unlock()
	c.keepers.Go(l.keep)
	return l
}

// Key is what is locked.
func (l *Lock) Key() Key { return l.request.key }

// PID is the backend of the session that holds the lock, as pg_stat_activity and pg_locks show it.
func (l *Lock) PID() int32 {
	if l.client == nil {
		return 0
	}
	return l.session.pid
}

// Context carries the values of the ctx that the lock was acquired with, and ends with the lock. context.Cause then is a
// *LostError (the session is gone, and others may hold the lock: stop), ErrReleased or ErrClosed. The loss is told at once when
// the server or the network says so, and within three times Config.CheckEvery when they are silent.
func (l *Lock) Context() context.Context {
	if l.client == nil {
		return endedContext
	}
	return l.ctx
}

var endedContext = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(ErrReleased)
	return ctx
}()

// Release gives the lock back: at once and for good on this side. It then blocks until the server has confirmed, for 5 s at most
// and until ctx ends; with a ctx that has ended before, the lock's own included, for 5 s at most. Without a confirmation the
// connection is closed, so that the lock cannot outlive the call for longer than the server takes to notice. The error is
//   - nil: the server says that the lock was held, and is free;
//   - a *LostError: the session was gone before, or the server says that the lock was not held. Others may have held it since;
//   - one that matches ErrNotReleased and the cause of ctx: not confirmed in time;
//   - ErrReleased or ErrClosed: it had ended in that way before, or was never granted.
func (l *Lock) Release(ctx context.Context) error {
	if l == nil || l.client == nil { // no lock that was granted
		return fmt.Errorf("%w: a zero Lock was never granted: use one that Acquire returns", ErrReleased)
	}
	released := fmt.Errorf("%w: %s: acquire it again", ErrReleased, l.request.key.describe())
	before := context.Cause(l.ctx)
	if before == nil && !l.released.CompareAndSwap(false, true) {
		before = released
	}
	if before != nil {
		return before
	}
	l.cancel(released)
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	for own := true; own; {
		select {
		case <-l.done:
			return l.outcome
		case <-ctx.Done():
		}
		if own = errors.Is(context.Cause(ctx), ErrReleased); own { // or comes from it, and ended with it
			ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
			defer cancel()
		}
	}
	l.session.cut()
	<-l.done
	if errors.Is(l.outcome, ErrNotReleased) {
		return fmt.Errorf("%w: %w", l.outcome, context.Cause(ctx))
	}
	return l.outcome
}

// keep is the goroutine that has the session, from the grant to its end.
func (l *Lock) keep() {
	err := l.session.watch(l.ctx, l.client.cfg)
	if err == nil {
		err = l.giveBack()
	}
	switch {
	case err == nil:
		l.session.goodbye()
	case l.ctx.Err() != nil && (l.session.life.Err() != nil || pgconn.Timeout(err)): // we gave it up
		l.outcome = fmt.Errorf("%w: %s: %w", ErrNotReleased, l.request.key.describe(), err)
	default:
		l.outcome = &LostError{Key: l.request.key, Reason: err}
		l.cancel(l.outcome)
		l.client.cfg.Logger.Warn("advisory: a lock was lost with its session", "key", l.request.key.describe(), "pid", l.session.pid, "error", err)
	}
	l.session.hangUp()
	l.leave()
	l.client.mu.Lock()
	delete(l.client.locks, l)
	l.client.mu.Unlock()
	close(l.done)
}

func (l *Lock) giveBack() error {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	return l.session.unlock(ctx, l.request)
}
