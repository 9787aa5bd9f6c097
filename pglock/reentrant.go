package pglock

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/holding"
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

// checkReentrant refuses names that a lease of this client holds which ctx, or the transaction that it is of, comes from. What another
// client holds may be in another database, which no DSN tells: own finds out.
func (c *Client) checkReentrant(ctx context.Context, lc leaseConfig) error {
	chain, _ := ctx.Value(leaseKey{}).(*leases)
	for ; chain != nil; chain = chain.outer {
		l := chain.lease
		if l.client != c || l.ended() {
			continue
		}
		for _, p := range l.places {
			if !slices.Contains(lc.names, p.name) {
				continue
			}
			if l.config.kind == shared && lc.kind == alone {
				return fmt.Errorf("%w: %v is shared, and cannot become a lock held alone: two readers that both asked would wait for each other. Release it first", ErrReentrant, l)
			}
			return reentrant(l)
		}
	}
	for _, name := range lc.names {
		if token := holding.Token(ctx, c.cfg.Schema, name); token != 0 && c.keeper.holds(name, fence.Token(token)) {
			return ownTransaction(name)
		}
	}
	return nil
}

// own says that what a call was refused for is the caller's own, by its token: no other lock of that name, of whichever database, has it.
// (A copy of the database has it until the lease has run out there: the guard lets a copy go on with later tokens.)
func (c *Client) own(ctx context.Context, refused error) error {
	held, ok := errors.AsType[*HeldError](refused)
	if !ok || held.Token == 0 {
		return nil
	}
	chain, _ := ctx.Value(leaseKey{}).(*leases)
	for ; chain != nil; chain = chain.outer {
		l := chain.lease
		if l.client.cfg.Schema == c.cfg.Schema && l.token == held.Token && l.has(held.Name) && !l.ended() {
			return reentrant(l)
		}
	}
	if holding.Token(ctx, c.cfg.Schema, held.Name) == int64(held.Token) {
		return ownTransaction(held.Name)
	}
	return nil
}

func reentrant(l *Lease) error {
	return fmt.Errorf("%w: %v: use it, or call with a context that does not come from it", ErrReentrant, l)
}

func ownTransaction(name string) error {
	return fmt.Errorf("%w: lock %q: acquire it before the transaction, or after", ErrOwnTransaction, name)
}
