package fence_test

import (
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// A pool with pgx's default settings, behind a pooler in transaction mode: many callers share few sessions.
func TestBehindPgBouncer(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	pool, err := pgxpool.New(t.Context(), pgtest.PgBouncer(t, d))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	ctx := bounded(t)
	var wg sync.WaitGroup
	for id := range 8 {
		wg.Go(func() {
			for n := range fence.Token(5) {
				wantErr(t, "upsert", invoices.Upsert(ctx, pool, grant(4*n+1), invoice(id, "x")), nil)
				wantErr(t, "update", invoices.Update(ctx, pool, grant(4*n+2), invoice(id, "y")), nil)
				wantErr(t, "delete", invoices.Delete(ctx, pool, grant(4*n+3), key(id)), nil)
				wantErr(t, "insert", invoices.Insert(ctx, pool, grant(4*n+4), invoice(id, "z")), nil)
				wantStale(t, "late upsert", invoices.Upsert(ctx, pool, grant(4*n+3), invoice(id, "x")), 4*n+4)
				wantErr(t, "Tx", fence.Tx(ctx, pool, grant(7), "report", func(tx pgx.Tx) error {
					return invoices.Update(ctx, tx, grant(4*n+4), invoice(id, "again"), fence.Again())
				}), nil)
			}
		})
	}
	wg.Wait()
}

// A batch is sent as the connection's setting says: behind this pooler as one that prepares nothing by name.
func TestFirstBehindPgBouncer(t *testing.T) {
	t.Parallel()
	d := fencedInvoices(t)
	cfg, err := pgxpool.ParseConfig(pgtest.PgBouncer(t, d))
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var wg sync.WaitGroup
	for range 8 {
		for how, run := range transactions {
			wg.Go(func() {
				wantErr(t, how, run(bounded(t), pool, grant(7), nil, fence.First(batch(how))), nil)
				wantErr(t, how+", stale", run(bounded(t), pool, grant(5), nil, fence.First(batch("stale"))), fence.ErrStale)
			})
		}
	}
	wg.Wait()
}
