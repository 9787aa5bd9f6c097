package advisory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	firstPoll = 25 * time.Millisecond
	lastPoll  = 250 * time.Millisecond
)

// pause waits a while before the next try: longer each time, and never in step with others. False: ctx ended.
func pause(ctx context.Context, tries int) bool {
	d := min(firstPoll<<min(tries, 10), lastPoll)
	t := time.NewTimer(d/2 + rand.N(d)) //nolint:gosec // jitter
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
	}
	return false
}

// grace is a context that goes on for d after ctx has ended. A statement that returns at once is given that time: to cut it off
// would cost the connection, and leave its outcome unknown.
func grace(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			cancel()
		case <-longer.Done():
		}
	})
	return longer, func() { stop(); cancel() }
}

// waited is the error of a wait that ctx ended: it matches the cause of ctx, and the last reason for waiting.
func waited(ctx context.Context, key Key, reason error) error {
	if reason == nil {
		return fmt.Errorf("advisory: wait for %s: %w", key.describe(), context.Cause(ctx))
	}
	return fmt.Errorf("advisory: wait for %s: %w; last: %w", key.describe(), context.Cause(ctx), unprefixed{reason})
}
