package fence_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// Transactions of a former holder run side by side, and the present one waits for all of them. If they always overlapped, it would
// wait for ever: while it waits no further one is let in. Until then they are: its lock was granted, and it has not written.
func TestAnAwaitedFenceLetsNoFurtherTransactionIn(t *testing.T) {
	t.Parallel()
	type write = func(context.Context, pgx.Tx, fence.Grant) error
	writes := func(id int) write {
		return func(ctx context.Context, tx pgx.Tx, g fence.Grant) error {
			if err := fence.State(ctx, tx, g); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `UPDATE invoices SET status = 'written' WHERE id = $1`, id)
			return fence.Explain(err)
		}
	}
	raises := func(ctx context.Context, tx pgx.Tx, g fence.Grant) error { return fence.Raise(ctx, tx, g, "ledger") }
	begins := func(ctx context.Context, tx pgx.Tx, g fence.Grant) error { // as Tx does over a pool
		_, err := tx.Exec(ctx, fmt.Sprintf(`CALL pglock.fence_begin_raised('%s', 0, %d, '{ledger}')`, g.Lock, g.Token))
		return err
	}
	for what, c := range map[string]struct {
		setup   string
		open    [3]write // each under the fence, none in the way of another otherwise
		further func(context.Context, *pgxpool.Pool, fence.Grant) error
	}{
		"Raise": {open: [3]write{raises, raises, raises}, further: func(ctx context.Context, pool *pgxpool.Pool, g fence.Grant) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return raises(ctx, tx, g) })
		}},
		"Tx": {open: [3]write{begins, begins, begins}, further: func(ctx context.Context, pool *pgxpool.Pool, g fence.Grant) error {
			return fence.Tx(ctx, pool, g, "ledger", nothing)
		}},
		"Tx of several": {open: [3]write{raises, raises, raises}, further: func(ctx context.Context, pool *pgxpool.Pool, g fence.Grant) error {
			return fence.Tx(ctx, pool, g, "audit", nothing, fence.Also("ledger"))
		}},
		"protected table": {
			setup: `SELECT pglock.protect('invoices')`, open: [3]write{writes(1), writes(2), writes(3)},
			further: func(ctx context.Context, pool *pgxpool.Pool, g fence.Grant) error {
				return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return writes(4)(ctx, tx, g) })
			},
		},
	} {
		for _, last := range []string{"opened before the later grant", "opened after it"} {
			t.Run(what+", the last is "+last, func(t *testing.T) {
				t.Parallel()
				d := pgtest.DB(t)
				d.Exec(t, createInvoices+`; INSERT INTO invoices SELECT g, 'old', 0 FROM generate_series(1, 4) g; `+c.setup)
				ctx, pool := bounded(t), d.Pool(t)
				former := held(t, d)
				later := fence.Grant{Lock: former.Lock, Token: former.Token + 1}
				first, second, other, rivals := d.Conn(t), d.Conn(t), d.Conn(t), d.Conn(t)

				one := begin(t, first, pgx.ReadCommitted)
				wantErr(t, "the holder", c.open[0](ctx, one, former), nil)
				commit(t, one)
				one = begin(t, first, pgx.ReadCommitted)
				wantErr(t, "the holder again", c.open[0](ctx, one, former), nil)
				d.Exec(t, `UPDATE pglock.leases SET token = token + 1 WHERE name = 'billing'`)
				two := begin(t, second, pgx.ReadCommitted)
				wantErr(t, "the former holder", c.open[1](ctx, two, former), nil)

				// That somebody waits for another fence, or looks at this one, is nothing to it.
				d.Exec(t, `SELECT pglock.fence_raise('something else', 'other', 0, 1)`)
				elsewhere := begin(t, other, pgx.Serializable)
				exec(t, elsewhere, `SET LOCAL enable_seqscan = off; SELECT pglock.fence_raise('something else', 'other', 0, 1);
				SELECT FROM pglock.fences WHERE relation = 0 AND resource = 'ledger'; SELECT FROM pglock.fences WHERE relation = 'invoices'::regclass`)
				apart := waiting(t, d, func() error {
					return fence.Tx(ctx, pool, fence.Grant{Lock: "other", Token: 2}, "something else", nothing)
				})
				wantErr(t, "the former holder beside itself", c.further(ctx, pool, former), nil)
				commit(t, elsewhere)
				wantErr(t, "somebody else", <-apart, nil)

				rival := begin(t, rivals, pgx.ReadCommitted)
				waits := waiting(t, d, func() error { return c.open[2](ctx, rival, later) })
				wantStale(t, "the former holder while another waits", c.further(ctx, pool, former), later.Token)
				again, err := two.Begin(ctx) // a savepoint, so that the transaction stays
				if err != nil {
					t.Fatal(err)
				}
				if err := c.open[1](ctx, again, former); !errors.Is(err, fence.ErrStale) && sqlState(err) != "FL000" {
					t.Errorf("the former holder once more in an open transaction = %v, want a refusal", err)
				}
				rollback(t, again)
				earlier, latest := two, one
				if last == "opened after it" {
					earlier, latest = one, two
				}
				commit(t, earlier)
				d.WaitFor(t, `SELECT $1 = ANY (pg_blocking_pids($2))`, int(latest.Conn().PgConn().PID()), int(rivals.PgConn().PID()))
				commit(t, latest)
				wantErr(t, "the present holder", <-waits, nil)
				commit(t, rival)
			})
		}
	}
}
