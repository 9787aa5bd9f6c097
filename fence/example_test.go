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

// A worker marks an invoice as paid under the lease that it holds. If it has been asleep and another has taken over and
// written, the database refuses this write, and the lease ends.
func ExampleTable() {
	invoices := fence.Table{Name: "billing.invoices", Key: []string{"id"}}

	pay := func(ctx context.Context, pool *pgxpool.Pool, grant fence.Grant) error { // grant is lease.Grant()
		return invoices.Update(ctx, pool, grant, fence.Row{"id": 7, "status": "paid"})
	}
	_ = pay
}

// Whatever belongs together is read and written in one transaction that holds the fence of its name.
func ExampleTx() {
	transfer := func(ctx context.Context, pool *pgxpool.Pool, grant fence.Grant) error {
		return fence.Tx(ctx, pool, grant, "ledger", func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `UPDATE accounts SET balance = balance - 10 WHERE id = 1`); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `UPDATE accounts SET balance = balance + 10 WHERE id = 2`)
			return err
		})
	}
	_ = transfer
}

// Writes that are known beforehand travel with BEGIN and the check of the lock. What their functions return is judged before the
// commit.
func ExampleFirst() {
	pay := func(ctx context.Context, pool *pgxpool.Pool, grant fence.Grant) error {
		var b pgx.Batch
		b.Queue(`UPDATE invoices SET status = 'paid' WHERE id = $1 AND status = 'open'`, 7).Exec(func(tag pgconn.CommandTag) error {
			if tag.RowsAffected() != 1 {
				return errors.New("there is no open invoice 7")
			}
			return nil
		})
		b.Queue(`INSERT INTO payments (invoice) VALUES ($1)`, 7)
		return fence.HeldTx(ctx, pool, grant, nil, fence.First(&b))
	}
	_ = pay
}

// What the answers of a row fence mean to the program.
func ExampleTable_answers() {
	answer := func(err error) string {
		var stale *fence.StaleError
		switch {
		case err == nil:
			return "written"
		case errors.As(err, &stale):
			return fmt.Sprintf("stop: token %d has written after our %d", stale.LastToken, stale.Token)
		case errors.Is(err, fence.ErrAlreadyWritten):
			return "written before, by us"
		case errors.Is(err, fence.ErrNoRow):
			return "there is no such invoice"
		default:
			return "try again, or give up: " + err.Error()
		}
	}
	fmt.Println(answer(&fence.StaleError{Resource: "invoices id=7", Lock: "billing", Token: 33, LastToken: 34}))
	// Output: stop: token 34 has written after our 33
}

// A token of 0 was never granted: nothing is sent.
func ExampleTable_Update_withoutAGrant() {
	invoices := fence.Table{Name: "billing.invoices", Key: []string{"id"}}
	err := invoices.Update(context.Background(), nil, fence.Grant{Lock: "billing"}, fence.Row{"id": 7, "status": "paid"})
	fmt.Println(err)
	// Output: fence: not a grant: token 0 of lock "billing"; take the grant from a lease that is held
}
