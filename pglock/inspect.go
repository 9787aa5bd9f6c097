package pglock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/jackc/pgx/v5"
)

// pruneChunk is how many names one statement of Prune forgets: it keeps transactions short.
const pruneChunk = 1000

// A Status is what the database knows of a lock, by its clock.
type Status struct {
	Name      string          // what is locked
	Slot      int             // 0; where several hold the name at once (Shared, Permits) each has one from 1 on
	Held      bool            // somebody holds it
	Owner     string          // of the holder; of the last one if nobody holds
	Token     fence.Token     // of the latest grant, which may be one that Revoke drew
	Since     time.Time       // when that was granted
	TTL       time.Duration   // of that grant
	Remaining time.Duration   // what the lease has left unless it is renewed; 0 if nobody holds
	FreeIn    time.Duration   // until another can be granted the lock: Remaining, or longer under HoldAtLeast; 0: now
	Metadata  json.RawMessage // what the latest grant was given with; nil if nothing
}

// Inspect answers who holds the lock, or held it last; if several do, the one whose lease lasts longest, see Holders. A name that was never used, or was pruned, is free with an empty Owner.
// It blocks for one round trip, at most until ctx ends, and changes nothing. The error is ErrNotAllowed for a role without
// grant_auditor, ErrInvalidName, ErrNotMigrated, ErrClosed, the cause of ctx, or what the driver says.
func (c *Client) Inspect(ctx context.Context, name string) (Status, error) {
	if err := checkName(name); err != nil {
		return Status{}, err
	}
	found, err := c.inspect(ctx, fmt.Sprintf("inspect lock %q", name), ` WHERE name OPERATOR(pg_catalog.=) $1 ORDER BY held DESC, free_in DESC, token DESC LIMIT 1`, name)
	if err != nil || len(found) == 0 {
		return Status{Name: name}, err
	}
	return found[0], nil
}

// Holders answers all who hold the lock, by slot. It blocks, needs and fails as Inspect does.
func (c *Client) Holders(ctx context.Context, name string) ([]Status, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	return c.inspect(ctx, fmt.Sprintf("inspect lock %q", name), ` WHERE name OPERATOR(pg_catalog.=) $1 AND held ORDER BY slot`, name)
}

// List answers every lock that was ever granted and not pruned, by name and slot. It blocks, needs and fails as Inspect does.
func (c *Client) List(ctx context.Context) ([]Status, error) {
	return c.inspect(ctx, "list the locks", ` ORDER BY name, slot`)
}

func (c *Client) inspect(ctx context.Context, what, where string, args ...any) ([]Status, error) {
	status := func(row pgx.CollectableRow) (s Status, err error) {
		var since, ttl, remaining, freeIn int64
		err = row.Scan(&s.Name, &s.Slot, &s.Held, &s.Owner, &s.Token, &since, &ttl, &remaining, &freeIn, &s.Metadata)
		s.Since, s.TTL, s.Remaining, s.FreeIn = time.UnixMicro(since), microseconds(ttl), microseconds(remaining), microseconds(freeIn)
		return s, err
	}
	return collect(ctx, c, call{what, auditor}, status, pinTimeouts, statement{sql: c.in(inspectSQL) + where, args: args})
}

// Prune forgets locks that nobody was granted for idle, and nobody holds, and answers how many. Their tokens are never handed
// out again. Only the owner of the schema may; idle below the cap on TTLs counts as the cap. It works in short transactions and
// blocks until all is done or ctx ends; what was forgotten by then stays forgotten, and is counted beside an error:
// ErrNotAllowed, ErrInvalidOption for a negative idle, ErrNotMigrated, ErrReadOnly, ErrClosed, the cause of ctx, or what the
// driver says.
func (c *Client) Prune(ctx context.Context, idle time.Duration) (int, error) {
	return c.forget(ctx, "prune", pruneSQL, idle)
}

// PruneFences forgets fences that nothing has raised for idle, in this database: those of named resources, of rows that a fenced
// delete took away, and of the keys of tables that fence.ProtectRows protects. It answers how many. What they kept out stays out: an
// earlier token is refused from then on wherever there is no fence. Only tokens are forgotten that are earlier than those of all
// live grants, so whoever holds a lock goes on, and while one lease lives for weeks no later fence is forgotten; a grant that is over
// may be refused where it would have passed. Whoever has the latest token of all counts as live. A resource belongs to the lock that
// raises it first after its fence was forgotten.
//
// The locks that the fences are raised under must live in this database too. It forgets nothing while new grants are held back
// (ErrHeldBack), while another call of it is under way, and while a transaction at repeatable read or serializable is open that has
// made a fence, or has inserted, deleted or rekeyed a row. It blocks, needs and fails as Prune does.
func (c *Client) PruneFences(ctx context.Context, idle time.Duration) (int, error) {
	return c.forget(ctx, "prune fences", pruneFencesSQL, idle)
}

// forget takes away what was idle, chunk after chunk.
func (c *Client) forget(ctx context.Context, what, sql string, idle time.Duration) (int, error) {
	if idle < 0 {
		return 0, fmt.Errorf("%w: %s of what was idle for %v", ErrInvalidOption, what, idle)
	}
	for total := 0; ; {
		n, err := collect(ctx, c, call{what, owner}, pgx.RowTo[int], pinIsolation, pinTimeouts, statement{sql: c.in(sql), args: []any{idle.Microseconds(), pruneChunk}})
		if err != nil {
			return total, err
		}
		if total += n[0]; n[0] < pruneChunk { // the next one would find what has become idle meanwhile, and so on
			return total, nil
		}
	}
}

// A call is what was tried, and who may.
type call struct {
	what string
	part part
}

// collect reads all that the last of the statements answers, on a connection of the pool for reads. They are one transaction.
func collect[T any](ctx context.Context, c *Client, tried call, row pgx.RowToFunc[T], statements ...statement) ([]T, error) {
	if !c.enter() {
		return nil, prefixed(tried.what, ErrClosed)
	}
	defer c.calls.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.closing, func() { cancel(ErrClosed) })()
	var found []T
	var b pgx.Batch
	var last *pgx.QueuedQuery
	for _, st := range statements {
		last = b.Queue(st.sql, st.args...)
	}
	last.Query(func(rows pgx.Rows) (err error) {
		found, err = pgx.CollectRows(rows, row)
		return err
	})
	err := c.reads.SendBatch(ctx, &b).Close()
	if err != nil && c.closing.Err() != nil {
		return nil, prefixed(tried.what, ErrClosed)
	}
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return found, prefixed(tried.what, explainTo(tried.part, c.cfg.Schema, err))
}
