package pglock

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// maxCap is the longest TTL that an installation may allow, as in the file that makes the schema.
const maxCap = 24 * time.Hour

// standbyPoll is how often RaiseCap looks at the standbys.
const standbyPoll = 50 * time.Millisecond

// EndHold ends the time in which nothing is granted after a restart, failover or restore (ErrHeldBack), also before anybody
// has noticed the change. It is for an operator who knows that no grant was lost: after an orderly restart, or a switch-over
// that waited for the standby. Ended wrongly, a lock can be granted while a lost grant of it is still trusted.
//
// Only the owner of the schema may. It blocks for one round trip, at most until ctx ends; after an error the hold may have ended.
// Calls that wait notice within a second. The error is ErrNotAllowed, ErrNotMigrated, ErrReadOnly, ErrClosed, the cause of
// ctx, or what the driver says.
func (c *Client) EndHold(ctx context.Context) error {
	return c.operate(ctx, "end the hold", endHoldSQL)
}

// DeclareSingleNode says whether the server has no standby and is never restored from a copy, as migrations.SingleNode does at
// installation. New grants then wait only until the cap has passed since the server started, or since it was shut down in an
// orderly way. Declared wrongly, a failover can grant a lock twice: declare false, and wait until it has answered, before the
// first standby is added.
//
// Only the owner of the schema may. It blocks and fails as EndHold does; after an error either may hold.
func (c *Client) DeclareSingleNode(ctx context.Context, yes bool) error {
	return c.operate(ctx, "declare a single node", singleNodeSQL, yes)
}

// RaiseCap allows TTLs up to ttl, from the present cap to 24 h in whole microseconds; the cap is never lowered. It is also how
// long new grants are held back after a restart or failover. A standby that is promoted without the new cap would hold them
// back for too short a time, so RaiseCap returns only when every standby that is connected has replayed it: before that, and
// while another standby is away, no client may use a longer TTL.
//
// Only the owner of the schema may, and it must be allowed to read pg_stat_replication (pg_monitor). It blocks until the standbys
// have replayed, at most until ctx ends. After an error the cap may have been raised, and the standbys may not have it: call
// it again before the first longer TTL. The error is ErrInvalidOption, ErrNotAllowed, ErrNotMigrated, ErrReadOnly, ErrClosed,
// the cause of ctx, or what the driver says.
func (c *Client) RaiseCap(ctx context.Context, ttl time.Duration) error {
	if ttl < MinTTL || ttl > maxCap || ttl%time.Microsecond != 0 {
		return fmt.Errorf("%w: a cap of %v: want whole microseconds from %v to %v", ErrInvalidOption, ttl, MinTTL, maxCap)
	}
	raise := fmt.Sprintf("raise the cap to %v", ttl)
	if err := c.operate(ctx, raise, raiseCapSQL, ttl.Microseconds()); err != nil {
		return err
	}
	end, err := collect(ctx, c, call{raise, owner}, pgx.RowTo[string], statement{sql: `SELECT pg_catalog.pg_current_wal_insert_lsn()::text`})
	if err != nil {
		return prefixed("the cap is raised, but whether the standbys have it is not known", err)
	}
	for {
		behind, err := collect(ctx, c, call{raise, owner}, pgx.RowTo[string], statement{sql: behindSQL, args: []any{end[0]}})
		switch {
		case err != nil:
			return prefixed("the cap is raised, but whether the standbys have it is not known", err)
		case len(behind) == 0:
			return nil
		case behind[0] == "":
			return fmt.Errorf("%w: the cap is raised, but this role may not see whether the standbys have it: grant it pg_monitor, and raise it once more",
				ErrNotAllowed)
		}
		select {
		case <-time.After(standbyPoll):
		case <-c.closing.Done():
			return prefixed("the cap is raised, but whether the standbys have it is not known", ErrClosed)
		case <-ctx.Done():
			return fmt.Errorf("pglock: the cap is raised, but these standbys have not replayed it: %s; raise it once more before a client uses a longer TTL: %w",
				strings.Join(behind, ", "), context.Cause(ctx))
		}
	}
}

// operate runs a call that only the owner may make.
func (c *Client) operate(ctx context.Context, what, sql string, args ...any) error {
	_, err := collect(ctx, c, call{what, owner}, pgx.RowTo[any], pinIsolation, pinTimeouts, statement{sql: c.in(sql), args: args})
	return err
}

// heldBack logs a hold when it is learnt of: once for each, whichever connection or call is told first, and again if it has
// grown longer.
func (c *Client) heldBack(remaining time.Duration, reason string) {
	if remaining <= 0 {
		return
	}
	end := c.clock.now().add(remaining)
	c.mu.Lock()
	known := !c.holdEnd.isZero() && end.mono < c.holdEnd.mono+time.Second // it is told anew with each answer
	if !known {
		c.holdEnd = end
	}
	c.mu.Unlock()
	if !known {
		c.log.Warn("pglock: new grants are held back", "for", remaining.Round(time.Millisecond), "because", reason)
	}
}
