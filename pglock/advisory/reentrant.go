package advisory

import (
	"context"
	"fmt"
)

// Contexts say which locks they come from, so that asking for one again can be refused: it could only wait for itself.
type lockKey struct{}

type locks struct {
	lock  *Lock
	outer *locks
}

func withLock(ctx context.Context, l *Lock) context.Context {
	outer, _ := ctx.Value(lockKey{}).(*locks)
	return context.WithValue(ctx, lockKey{}, &locks{l, outer})
}

// checkReentrant refuses a key that this client holds for the caller itself.
func (c *Client) checkReentrant(ctx context.Context, key Key) error {
	chain, _ := ctx.Value(lockKey{}).(*locks)
	for ; chain != nil; chain = chain.outer {
		if l := chain.lock; l.client == c && l.Key().Same(key) && l.ctx.Err() == nil {
			return fmt.Errorf("%w: %s: use that lock, or call with a context that does not come from it", ErrReentrant, key.describe())
		}
	}
	return nil
}
