package migrations

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// errBusy says that somebody else is at it: roll back, wait, look again.
var errBusy = errors.New("another process migrates it")

// lockKey is the advisory lock of everything that changes the schema. One for each schema, so that two services with
// schemas of their own in one database do not wait for each other.
func lockKey(schema string) int64 {
	sum := sha256.Sum256([]byte("github.com/fencedlock/fencedlock/migrations\x00" + schema))
	return int64(binary.BigEndian.Uint64(sum[:8])) //nolint:gosec // any 64 bits will do
}

// tryLock takes the lock to the end of the transaction, or returns errBusy. Of the transaction, because a session lock
// behind a transaction pooler belongs to whoever gets that server connection next; by try, because a waiter would hold a
// snapshot and a place in the lock table.
func tryLock(ctx context.Context, tx pgx.Tx, schema string) error {
	var got bool
	if err := tx.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock($1)", simple, lockKey(schema)).Scan(&got); err != nil {
		return err
	}
	if !got {
		return errBusy
	}
	return nil
}

// busy tells an error that goes away by waiting: the lock is taken, or somebody uses a table that must change.
func busy(err error) bool {
	var pg *pgconn.PgError
	return errors.Is(err, errBusy) ||
		errors.As(err, &pg) && (pg.Code == "55P03" || pg.Code == "40P01") // lock_not_available, deadlock_detected
}

// pause waits a while before the next try, longer each time and never in step with others.
func pause(ctx context.Context, try int) error {
	d := min(30*time.Millisecond<<min(try, 4), 250*time.Millisecond)
	t := time.NewTimer(d/2 + rand.N(d)) //nolint:gosec // jitter
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
