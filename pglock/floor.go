package pglock

import (
	"context"
	"fmt"

	"github.com/fencedlock/fencedlock/fence"
)

// maxFloor is three quarters of what the sequence of tokens ends at: above it, it would soon be used up.
const maxFloor fence.Token = 6755399441055744

// RaiseTokenFloor makes all later grants, of every lock in the schema, carry tokens above floor. It is the way out of
// fence.ErrBehind, where something protected has seen a token that this database does not know of, because it is an old copy:
// pass the LastToken of the error, then acquire the lock anew. It never lowers anything, and leases that are held keep their
// tokens.
//
// Only the owner of the schema may. floor is from 1 to 6755399441055744. It blocks for two round trips, at most until ctx ends.
// After an error the floor may have been raised, which does no harm; raise it again. The error is ErrInvalidOption, before any
// SQL, ErrNotAllowed, ErrNotMigrated, ErrReadOnly, ErrClosed, the cause of ctx, or what the driver says.
func (c *Client) RaiseTokenFloor(ctx context.Context, floor fence.Token) error {
	if floor < 1 || floor > maxFloor {
		return fmt.Errorf("%w: a token floor of %d: want 1 to %d", ErrInvalidOption, floor, maxFloor)
	}
	return c.operate(ctx, "raise the token floor", raiseFloorSQL, int64(floor))
}
