package pglock

import (
	"context"
	"fmt"
	"slices"
)

// Contexts say which leases they come from, so that asking for one again can be refused: it could only wait for itself.
type leaseKey struct{}

type leases struct {
	lease *Lease
	outer *leases
}

func withLease(ctx context.Context, l *Lease) context.Context {
	outer, _ := ctx.Value(leaseKey{}).(*leases)
	return context.WithValue(ctx, leaseKey{}, &leases{l, outer})
}

// checkReentrant refuses names that a lease holds which ctx comes from.
func (c *Client) checkReentrant(ctx context.Context, lc leaseConfig) error {
	chain, _ := ctx.Value(leaseKey{}).(*leases)
	for ; chain != nil; chain = chain.outer {
		l := chain.lease
		if l.client.cfg.Schema != c.cfg.Schema || l.ended() {
			continue
		}
		for _, p := range l.places {
			if !slices.Contains(lc.names, p.name) {
				continue
			}
			if l.config.kind == shared && lc.kind == alone {
				return fmt.Errorf("%w: %v is shared, and cannot become a lock held alone: two readers that both asked would wait for each other. Release it first", ErrReentrant, l)
			}
			return fmt.Errorf("%w: %v: use it, or call with a context that does not come from it", ErrReentrant, l)
		}
	}
	return nil
}
