package fence_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/fence"
)

// Where the tables are made they are protected as well, by Go or by SQL in a migration. A service looks once, when it starts.
func ExampleProtect() {
	migrate := func(ctx context.Context, pool *pgxpool.Pool) error {
		if err := fence.Protect(ctx, pool, "billing.invoices"); err != nil { // SELECT pglock.protect('billing.invoices')
			return err
		}
		return fence.ProtectRows(ctx, pool, "billing.accounts", "customer_id")
	}
	start := func(ctx context.Context, pool *pgxpool.Pool) error {
		return fence.Verify(ctx, pool, "billing.invoices")
	}
	_, _ = migrate, start
}

// A transaction of one's own says under which grant it writes. If the lock has moved on, the write is refused and the lease
// ends.
func ExampleState() {
	pay := func(ctx context.Context, pool *pgxpool.Pool, grant fence.Grant) error { // grant is lease.Grant()
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := fence.State(ctx, tx, grant); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `UPDATE billing.invoices SET status = 'paid' WHERE id = 7`)
			return grant.Stale(fence.Explain(err))
		})
	}
	_ = pay
}

// What a program that knows nothing of locks gets from PostgreSQL, and what it means.
func ExampleExplain() {
	err := fence.Explain(&pgconn.PgError{
		Severity: "ERROR", Code: "FL001", Message: "write to billing.invoices refused: this transaction has stated no token",
	})
	fmt.Println(errors.Is(err, fence.ErrNotStated))
	fmt.Println(err)
	// Output:
	// true
	// ERROR: write to billing.invoices refused: this transaction has stated no token (SQLSTATE FL001)
}
