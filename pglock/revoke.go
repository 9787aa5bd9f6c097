package pglock

import (
	"context"
	"fmt"
	"time"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/jackc/pgx/v5"
)

// Revoke takes a lock from whoever holds it, and answers with a token that is later than theirs. Their renewals are refused at once,
// and their contexts end with a *LostError whose Cause is Revoked: within moments where their client listens, and with the next
// renewal otherwise. (It listens once it has renewed a lease, unless it does so more often than every two seconds.) They
// are not stopped by that: so nobody is granted the lock before their leases have run out, nor before grace has passed, which is theirs to wind down. Then a token is drawn, and
// what they write after that through fence.HeldTx is refused; other fences refuse them once a later token has passed.
//
// It blocks for all of that time, a TTL at most, or grace if that is longer, until ctx ends: then the lock is revoked, and the
// token may not be drawn, so call it again. Who waits for the lock may be granted it first; the token is that one's then. A name
// that nobody holds gets a new token at once, against a holder of the past that does not know. Every slot of a shared lock or
// semaphore is revoked.
//
// Only the owner of the schema may. The error is fence.ErrNeverGranted for a name that nobody was ever granted, ErrHeldBack,
// ErrInvalidName, ErrInvalidOption for a negative grace, or one above 24 h, ErrNotAllowed, ErrNotMigrated, ErrReadOnly, ErrClosed, the
// cause of ctx, or what the driver says.
func (c *Client) Revoke(ctx context.Context, name string, grace time.Duration) (fence.Token, error) {
	if err := checkName(name); err != nil {
		return 0, err
	}
	if grace < 0 || grace > maxCap {
		return 0, fmt.Errorf("%w: a grace of %v: want 0 to %v (lock %q)", ErrInvalidOption, grace, maxCap, name)
	}
	id := newAcquisition()
	for begin := true; ; {
		a, err := c.askRevoke(ctx, name, id, grace, begin)
		if err != nil {
			return 0, err
		}
		var rest time.Duration
		switch a.status {
		case "done":
			c.sawToken(a.token)
			return a.token, nil
		case "unknown":
			return 0, fmt.Errorf("pglock: revoke lock %q: nobody was ever granted it: %w", name, fence.ErrNeverGranted)
		case "revoked":
			begin, rest = false, a.remaining+jitter(5*time.Millisecond)
		case "retry":
			rest = jitter(lockedRetry)
		default:
			return 0, c.refusal(leaseConfig{name: name}, a)
		}
		select {
		case <-time.After(rest):
		case <-c.closing.Done():
			return 0, prefixed(fmt.Sprintf("revoke lock %q", name), ErrClosed)
		case <-ctx.Done():
			return 0, fmt.Errorf("pglock: revoke lock %q: it is not over yet, its holders have up to %v left: call it again: %w",
				name, a.remaining.Round(time.Millisecond), context.Cause(ctx))
		}
	}
}

func (c *Client) askRevoke(ctx context.Context, name string, id acquisition, grace time.Duration, begin bool) (reply, error) {
	row := func(row pgx.CollectableRow) (a reply, err error) {
		var since, remaining int64
		err = row.Scan(&a.status, &a.token, &a.owner, &since, &remaining)
		a.since, a.remaining = time.UnixMicro(since), microseconds(remaining)
		return a, err
	}
	answers, err := collect(ctx, c, call{fmt.Sprintf("revoke lock %q", name), owner}, row, pinIsolation, pinTimeouts,
		statement{sql: c.in(revokeSQL), args: []any{name, id, c.cfg.Owner, grace.Microseconds(), begin, c.seen.Load()}})
	if err != nil {
		return reply{}, err
	}
	return answers[0], nil
}
