package pglock

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// A kind is how a lock is held, as the database counts: alone, beside other readers, or as one of n.
type kind int

const (
	alone  kind = 0
	shared kind = -1

	maxPermits = 10000

	// maxNames bounds a lease on several names: all of them travel in one statement.
	maxNames = 1000
)

func (k kind) String() string {
	if k <= 0 {
		return "a lock without permits"
	}
	if k == 1 {
		return "a semaphore with 1 permit"
	}
	return fmt.Sprintf("a semaphore with %d permits", int(k))
}

// option is how a caller asks for it.
func (k kind) option() string {
	if k == shared {
		return "Shared()"
	}
	return fmt.Sprintf("Permits(%d)", int(k))
}

// Shared lets any number hold the name at the same time, as readers do; whoever asks without it, a writer, holds it alone. A writer
// that waits (Acquire, Do) is not starved: readers that come after it wait until it was granted the lock, or has given up. One
// that dies while it waits keeps new readers away for a minute at most. A reader cannot become a writer: asking for the lock alone
// with the context of a shared lease is ErrReentrant; release first, and look again at what was read.
//
// Each reader has a token, a TTL and its renewals like any other holder. Their tokens do not order their writes, so only
// fence.HeldTx and fence.Hold take the grant of a shared lease; other fences refuse it with fence.ErrShared. A grant takes
// longer the more readers there are, by about a microsecond for each.
func Shared() Option {
	return Option{func(c *leaseConfig) error { return c.become(shared) }}
}

// Permits makes the name a semaphore: at most n hold it at the same time, over all processes. All that use a name must say the
// same n, from 1 to 10000: while somebody holds it, whoever says another one, or wants it alone or shared, is told so (ErrOtherKind).
// While nobody does, the name becomes what is asked for, so n can change.
//
// Each permit is a slot with tokens of its own, and its grant fences per slot: a resource belongs to a slot, not to the semaphore. A
// row of a fence.Table knows no slots: give each holder its own rows, or write in a fence.HeldTx.
func Permits(n int) Option {
	return Option{func(c *leaseConfig) error {
		if n < 1 || n > maxPermits {
			return fmt.Errorf("%w: Permits(%d): want 1 to %d", ErrInvalidOption, n, maxPermits)
		}
		return c.become(kind(n))
	}}
}

func (c *leaseConfig) become(k kind) error {
	if c.kind != alone && c.kind != k {
		return fmt.Errorf("%w: %s and %s exclude each other", ErrInvalidOption, c.kind.option(), k.option())
	}
	c.kind = k
	return nil
}

// LockDelay keeps the name from those whom the lease kept out for d after it has run out without a release: after a crash, a loss, or a
// Revoke. (Other readers, and who is granted another permit, were not kept out.) What a dead holder had sent to systems without a
// fence then has time to arrive. A release, also a late one by whoever lost the lease, ends it, but not after a Revoke. d is at most 24 h.
func LockDelay(d time.Duration) Option {
	return Option{func(c *leaseConfig) error {
		if d <= 0 || d > maxCap {
			return fmt.Errorf("%w: LockDelay(%v) must be positive and at most %v", ErrInvalidOption, d, maxCap)
		}
		c.lockDelay = d
		return nil
	}}
}

// MaxHold ends the lease d after it was asked for, whoever forgot it: it is renewed until then and no longer, and its context ends
// with a *LostError whose Cause is HeldTooLong. It is not released, since what it protects may still be at work: others are granted
// the lock shortly after, a tenth of the TTL (or 50 ms) later at most. d is at least the TTL and at most
// 366 days.
func MaxHold(d time.Duration) Option {
	return Option{func(c *leaseConfig) error {
		if d <= 0 || d > maxHold {
			return fmt.Errorf("%w: MaxHold(%v) must be positive and at most %v", ErrInvalidOption, d, maxHold)
		}
		c.maxHold = d
		return nil
	}}
}

// checkNames refuses what cannot be locked together, and says what it is called in messages.
func checkNames(names []string) (label string, err error) {
	if len(names) == 0 || len(names) > maxNames {
		return "", fmt.Errorf("%w: %d names, want 1 to %d", ErrInvalidName, len(names), maxNames)
	}
	if len(names) == 1 {
		return names[0], checkName(names[0])
	}
	first := make(map[string]int, len(names))
	for i, name := range names {
		if err := checkName(name); err != nil {
			return "", fmt.Errorf("%w (name %d of %d)", err, i+1, len(names))
		}
		if j, twice := first[name]; twice {
			return "", fmt.Errorf("%w: %q is there twice, as name %d and %d of %d", ErrInvalidName, name, j+1, i+1, len(names))
		}
		first[name] = i
	}
	return strings.Join(names, ", "), nil
}

// An OtherKindError says what a name is while somebody holds it. It matches ErrOtherKind.
type OtherKindError struct {
	Name  string
	Owner string // of somebody who holds it
	Kind  string // what it is, in words
	Asked string // what was asked for
}

func (e *OtherKindError) Error() string {
	return fmt.Sprintf("pglock: %q is %s now (%q holds it), and not %s: use the same options everywhere, or wait until nobody holds it",
		e.Name, e.Kind, cmp.Or(e.Owner, "somebody"), e.Asked)
}

// Is matches ErrOtherKind.
func (e *OtherKindError) Is(target error) bool { return target == ErrOtherKind }
