package advisory

import (
	"context"
	"errors"
	"fmt"
)

// Do acquires the lock as Acquire does, runs f under it, waits for f, and releases it. f's context carries the values of ctx
// and ends with ctx, or with the lock: context.Cause then is a *LostError or ErrClosed. When ctx ends, the lock is held until f has
// returned, so f may wind down under it; when the lock is lost, f must stop what it protects.
//
// The error joins what there is of: the error of the acquisition (f has not run); the error of f; a *LostError if the lock was
// lost before f had returned, whatever f answered; ErrClosed if the client was closed before that; ErrNotReleased if the
// release was not confirmed within 5 s (the work was done under the lock). A panic or runtime.Goexit in f releases the lock and
// goes on. Asking this client for the same key with f's context is ErrReentrant: it could only wait for itself.
func (c *Client) Do(ctx context.Context, key Key, f func(ctx context.Context) error, opts ...Option) (err error) {
	if err := key.check(); err != nil {
		return err
	}
	if f == nil {
		return fmt.Errorf("%w: Do without a function (%s)", ErrInvalidOption, key.describe())
	}
	l, err := c.Acquire(ctx, key, opts...)
	if err != nil {
		return err
	}
	// Deferred, so that it also runs when f panics. The release goes out whatever became of ctx, and is bounded by itself.
	defer func() {
		if released := l.Release(context.WithoutCancel(ctx)); released != nil && !errors.Is(err, released) {
			err = errors.Join(err, released)
		}
	}()
	// A child of the lock's context, so that its loss reaches f without a detour.
	fctx, cancel := context.WithCancelCause(l.Context())
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	return f(fctx)
}
