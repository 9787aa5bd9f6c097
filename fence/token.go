package fence

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// A Token orders the grants of one lock: a later grant carries a greater one, over releases, expiries, restarts and
// failovers. It is opaque otherwise: not dense, not from 1, always below 2^53, so that any language can hold it.
// The zero Token was never granted.
type Token int64

const maxToken Token = 1<<53 - 1 // what the sequence behind the tokens ends at

// A Grant names the one grant that a write is made under. It is a value: copying it is free, and it says nothing about
// whether the lease is still held. That is what the fence finds out. pglock's Lease.Grant gives one; a token that has
// travelled (in a header, to another process) makes one too.
type Grant struct {
	Lock  string // the name of the lock, 1 to 255 bytes
	Slot  int    // which of its slots; 0 for a lock that one caller holds
	Token Token

	schema  string // where its fences are; empty: DefaultSchema
	shared  bool   // with other holders at the same time
	onStale func(error)
	while   func() error
}

// InSchema returns a copy of the grant whose writes use the fences in that schema, unless the option [Schema] names another:
// the one that the lock lives in. The Grant of a lease of package pglock says it by itself.
func (g Grant) InSchema(name string) Grant {
	g.schema = name
	return g
}

// AsShared returns a copy of the grant that says that others hold the lock at the same time. Their tokens follow one another as they
// were granted, which orders none of their writes: only [HeldTx] and [Hold] take such a grant, and all else refuses it with [ErrShared].
// The Grant of a shared lease of package pglock says it by itself.
func (g Grant) AsShared() Grant {
	g.shared = true
	return g
}

// IsShared says whether the grant is one of [Grant.AsShared].
func (g Grant) IsShared() bool { return g.shared }

// OnStale returns a copy of the grant whose writes call f once with their error whenever a fence refuses them as stale
// (see [ErrStale]), before they return it. What the grant called before is called too, and first: the Grant of a lease of
// package pglock ends the lease that way, whatever is added. A nil f adds nothing.
//
// f is called in the goroutine that made the write. It must not block, and it may be called more than once and from
// several goroutines at a time, one call for each write refused.
func (g Grant) OnStale(f func(error)) Grant {
	switch earlier := g.onStale; {
	case f == nil:
	case earlier == nil:
		g.onStale = f
	default:
		g.onStale = func(err error) { earlier(err); f(err) }
	}
	return g
}

// While returns a copy of the grant whose writes ask f first: if it returns an error, they return that, wrapped, and send
// nothing. What the grant asked before is asked first. The Grant of a lease of package pglock asks in that way whether the
// lease was released. A nil f adds nothing.
//
// f is called in the goroutine that writes, at the beginning of each write, and must not block.
func (g Grant) While(f func() error) Grant {
	switch earlier := g.while; {
	case f == nil:
	case earlier == nil:
		g.while = f
	default:
		g.while = func() error {
			if err := earlier(); err != nil {
				return err
			}
			return f()
		}
	}
	return g
}

// Validate tells what every write finds out before it sends anything: [ErrNoToken] for what can be no grant, and what
// [Grant.While] answers. Nil says nothing of whether the lock has moved on; that only a fence knows.
func (g Grant) Validate() error {
	if err := g.check(); err != nil || g.while == nil {
		return err
	}
	if err := g.while(); err != nil {
		return fmt.Errorf("fence: lock %q: %w", g.Lock, err)
	}
	return nil
}

func (g Grant) check() error {
	switch {
	case g.Token <= 0 || g.Token > maxToken:
		return fmt.Errorf("fence: %w: token %d of lock %q; take the grant from a lease that is held", ErrNoToken, g.Token, g.Lock)
	case g.Lock == "" || len(g.Lock) > 255 || !storable(g.Lock):
		return fmt.Errorf("fence: %w: lock name %q; want 1 to 255 bytes of UTF-8 without NUL", ErrNoToken, g.Lock)
	case g.Slot < 0 || g.Slot > math.MaxInt32:
		return fmt.Errorf("fence: %w: slot %d of lock %q; slots begin at 0", ErrNoToken, g.Slot, g.Lock)
	}
	return nil
}

// Stale tells what is registered with [Grant.OnStale] of a refusal, if err matches [ErrStale], and returns err. It is for fences
// of your own; those of this package call it.
func (g Grant) Stale(err error) error {
	if g.onStale != nil && errors.Is(err, ErrStale) {
		g.onStale(err)
	}
	return err
}

// storable reports whether PostgreSQL can keep s as text.
func storable(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }
