package billing

import (
	"context"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/migrations"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/jackc/pgx/v5/pgxpool"
)

func Bill(ctx context.Context, pool *pgxpool.Pool) error {
	if err := migrations.Up(ctx, pool); err != nil { // the lock schema: every replica may call it, at any time
		return err
	}
	locks, err := pglock.New(pool, pglock.Config{}) // one for a process is enough
	if err != nil {
		return err
	}
	defer locks.Close(ctx)
	invoices := fence.Table{Name: "invoices", Key: []string{"id"}} // with a column fencing_token bigint
	return locks.Do(ctx, "invoice-42", func(ctx context.Context, lease *pglock.Lease) error {
		return invoices.Update(ctx, pool, lease.Grant(), fence.Row{"id": 42, "total": 120})
	})
}
