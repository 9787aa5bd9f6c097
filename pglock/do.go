package pglock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// releaseTimeout bounds how long Do waits for the release to be confirmed.
const releaseTimeout = 5 * time.Second

// Do acquires the lock as Acquire does, runs f under it, waits for f, and releases it. f's context carries the values of ctx
// and ends with ctx, or with the lease: context.Cause then is a *LostError or ErrClosed. When ctx ends, the lease is renewed
// until f has returned, so f may wind down under it; when the lease is lost, f must stop what the lock protects, and what it
// writes all the same is for the fence to refuse (Lease.Grant).
//
// The error joins what there is of: the error of the acquisition (f has not run); the error of f; a *LostError if the lease was
// lost before f had returned, whatever f answered; ErrClosed if the client was closed before that; ErrNotReleased if the
// release was not confirmed within 5 s (the work was done under the lease). A panic or runtime.Goexit in f releases the lease
// and goes on. f may release the lease itself. Do is not re-entrant: asking for the same name with f's context is ErrReentrant.
func (c *Client) Do(ctx context.Context, name string, f func(ctx context.Context, l *Lease) error, opts ...Option) (err error) {
	return c.DoAll(ctx, []string{name}, f, opts...)
}

// DoAll is Do for several names, which it acquires as AcquireAll does.
func (c *Client) DoAll(ctx context.Context, names []string, f func(ctx context.Context, l *Lease) error, opts ...Option) (err error) {
	if f == nil {
		return fmt.Errorf("%w: Do without a function (lock %.300q)", ErrInvalidOption, strings.Join(names, ", "))
	}
	l, err := c.AcquireAll(ctx, names, opts...)
	if err != nil {
		return err
	}
	// Deferred, so that it also runs when f panics. The release goes out whatever became of ctx.
	defer func() {
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		if released := l.Release(rctx); released != nil && !errors.Is(err, released) && !errors.Is(released, ErrReleased) {
			err = errors.Join(err, released)
		}
	}()
	// A child of the lease's context, so that the loss of the lease reaches f without a detour.
	fctx, cancel := context.WithCancelCause(l.Context())
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	return f(fctx, l)
}
