package migrateguard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/fencedlock/fencedlock/pglock"
)

// announceEvery is how often a wait is told.
const announceEvery = 10 * time.Second

// A wait is all that one call waits for others. Its limit counts from the first of that, and bounds nothing else: not to
// connect, nor to migrate.
type wait struct {
	limit time.Duration // 0: none
	since time.Time     // zero: it has not waited yet
}

// begin begins to wait, or goes on with it.
func (w *wait) begin(ctx context.Context) (context.Context, context.CancelFunc) {
	if w.since.IsZero() {
		w.since = time.Now()
	}
	if w.limit == 0 {
		return context.WithCancel(ctx)
	}
	over := fmt.Errorf("the limit of %v is over: %w", w.limit, context.DeadlineExceeded)
	return context.WithDeadlineCause(ctx, w.since.Add(w.limit), over)
}

// event is what is told of it.
func (w *wait) event(reason error) Event {
	return Event{Kind: Waiting, Elapsed: time.Since(w.since), Err: reason}
}

// gaveUp is the error of a wait that ctx ended.
func (w *wait) gaveUp(ctx context.Context, reason error) error {
	return fmt.Errorf("%w: waited for %v (%w): %w", ErrBusy, time.Since(w.since).Round(time.Millisecond), context.Cause(ctx), reason)
}

// inTheWay is the part of an error that says who, or what.
func inTheWay(err error) error {
	if held, ok := errors.AsType[*pglock.HeldError](err); ok {
		return held
	}
	if back, ok := errors.AsType[*pglock.HeldBackError](err); ok {
		return back
	}
	return err
}

// pause is the time between two tries for a session lock: longer each time, and never in step with others.
func pause(ctx context.Context, tries int) {
	d := min(25*time.Millisecond<<min(tries, 4), 250*time.Millisecond)
	t := time.NewTimer(d/2 + rand.N(d)) //nolint:gosec // jitter
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
