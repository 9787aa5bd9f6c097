package advisory_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/pglock/advisory"
)

// The number of a name, for psql and for other languages: SELECT pg_try_advisory_xact_lock(…).
func ExampleName() {
	key := advisory.Name("billing", "invoice-42")
	classid, objid, objsubid := key.PgLocks()
	fmt.Println(key, classid, objid, objsubid)
	// Output: 3007809689728660344 700310266 205599608 1
}

// A key with an empty part is usually a setting that is missing: nothing is sent.
func ExampleName_empty() {
	fmt.Println(advisory.InTx(nil).TryAcquire(context.Background(), advisory.Name("billing", "")))
	// Output: advisory: invalid key: part 2 of 2 of the name is empty; make one with advisory.Name, Int64 or Int32s
}

// Whatever is done in one transaction is best locked by it.
func ExampleInTx() {
	close := func(ctx context.Context, pool *pgxpool.Pool, account string) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := advisory.InTx(tx).Acquire(ctx, advisory.Name("account", account)); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `UPDATE accounts SET closed = true WHERE name = $1 AND balance = 0`, account)
			return err
		})
	}
	_ = close
}

// Somebody else is at it: then there is nothing to do.
func ExampleInSQLTx() {
	refresh := func(ctx context.Context, tx *sql.Tx) error {
		err := advisory.InSQLTx(tx).TryAcquire(ctx, advisory.Name("refresh"))
		if errors.Is(err, advisory.ErrHeld) {
			return nil // the transaction goes on as if nothing had been asked
		}
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `REFRESH MATERIALIZED VIEW totals`)
		return err
	}
	_ = refresh
}

// A lock for longer than a transaction. The function's context ends when the session, and with it the lock, is gone.
func ExampleClient_Do() {
	nightly := func(ctx context.Context, locks *advisory.Client, report func(context.Context) error) error {
		err := locks.Do(ctx, advisory.Name("reports/nightly"), report)
		if errors.Is(err, advisory.ErrLost) {
			return fmt.Errorf("another may have begun before the report was done: %w", err)
		}
		return err
	}
	_ = nightly
}

// One of many instances does the work while it has the lock.
func ExampleClient_TryAcquire() {
	lead := func(ctx context.Context, locks *advisory.Client, work func(context.Context)) error {
		l, err := locks.TryAcquire(ctx, advisory.Name("importer"))
		var held *advisory.HeldError
		if errors.As(err, &held) {
			fmt.Println("standing by:", held)
			return nil
		}
		if err != nil {
			return err
		}
		work(l.Context())
		return l.Release(ctx)
	}
	_ = lead
}

// Who is in the way of a deployment?
func ExampleList() {
	show := func(ctx context.Context, pool *pgxpool.Pool) error {
		entries, err := advisory.List(ctx, pool, advisory.Name("deploy"))
		for _, e := range entries {
			fmt.Println(e, e.Waits, e.BlockedBy)
		}
		return err
	}
	_ = show
}
