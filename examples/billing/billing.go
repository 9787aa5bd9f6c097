package billing

import (
	"context"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/migrations"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/jackc/pgx/v5/pgxpool"
)

var invoices = fence.Table{Name: "invoices", Key: []string{"id"}} // with a column fencing_token bigint

func Start(ctx context.Context, pool *pgxpool.Pool) (*pglock.Client, error) { // one client for a process is enough
	if err := migrations.Up(ctx, pool); err != nil { // the lock schema: every replica may call it, at any time
		return nil, err
	}
	return pglock.New(pool, pglock.Config{})
}

func Bill(ctx context.Context, pool *pgxpool.Pool, locks *pglock.Client) error {
	return locks.Do(ctx, "invoice-42", func(ctx context.Context, lease *pglock.Lease) error {
		return invoices.Update(ctx, pool, lease.Grant(), fence.Row{"id": 42, "total": 120})
	})
}
