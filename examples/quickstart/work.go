//go:build unix

package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/pglock"
)

const (
	lockName = "invoice-42"
	leaseTTL = 2 * time.Second // short, to see it lapse soon; the default is 15 s
)

// invoices is a table of the user. It has a column for the token of its last writer: fencing_token bigint.
var invoices = fence.Table{Name: "invoices", Key: []string{"id"}}

// work is what both workers do, word for word: take the lock, work out a total, and write it under the fence.
func work(ctx context.Context, name string, pool *pgxpool.Pool, workOut func() (int, error), fenced bool) error {
	locks, err := pglock.New(pool, pglock.Config{Owner: name, TTL: leaseTTL})
	if err != nil {
		return err
	}
	defer closeLocks(locks)

	say("wants the lock %q", lockName)
	return locks.Do(ctx, lockName, func(ctx context.Context, lease *pglock.Lease) error {
		say("holds the lock, token %d, and works out a total", lease.Token())
		total, err := workOut() // here worker A is frozen
		if err != nil {
			return err
		}

		// A lease that is lost has ended the context, and a program should stop then. But it may be frozen after its last look
		// as well, so looking cannot be what protects the row. Ours writes all the same, to show what does.
		if !lease.Valid() {
			<-ctx.Done()
			say("learns from its context: %v", context.Cause(ctx))
			say("writes all the same, as if it had looked a moment too early")
			ctx = context.WithoutCancel(ctx)
		}

		row := fence.Row{"id": 42, "total": total, "writer": name}
		if !fenced {
			return updateWithoutFence(ctx, pool, row)
		}
		return invoices.Update(ctx, pool, lease.Grant(), row)
	})
}

// updateWithoutFence is what programs do that trust their lock alone.
func updateWithoutFence(ctx context.Context, pool *pgxpool.Pool, row fence.Row) error {
	_, err := pool.Exec(ctx, `UPDATE invoices SET total = $2, writer = $3 WHERE id = $1`, row["id"], row["total"], row["writer"])
	return err
}

// report says what became of the work. The error of Do joins what there is of: for worker A the write that was refused, and
// the lease that was lost.
func report(err error) {
	stale, isStale := errors.AsType[*fence.StaleError](err)
	switch {
	case isStale:
		say("REFUSED by the database: it wrote with token %d, but %d has written since", stale.Token, stale.LastToken)
	case errors.Is(err, pglock.ErrLost):
		say("has written, after its lease was lost")
	case err != nil:
		say("failed: %v", err)
	default:
		say("has written its total and released the lock")
	}
}

// closeLocks waits a second at most for the database to confirm; what it does not confirm ends with the TTL.
func closeLocks(locks *pglock.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := locks.Close(ctx); err != nil {
		say("closing: %v", err)
	}
}
