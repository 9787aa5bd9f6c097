// Package deadline tells whether a context has ended, to those who have an error of the network: that one is told of the deadline on
// its own, and sometimes a moment before the context is.
package deadline

import (
	"context"
	"time"
)

// Cause is context.Cause, once the deadline of ctx has passed: then it waits for the end of ctx, which is due.
func Cause(ctx context.Context) error {
	if at, ok := ctx.Deadline(); ok && time.Until(at) <= 0 {
		<-ctx.Done()
	}
	return context.Cause(ctx)
}
