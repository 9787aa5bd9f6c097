package fence_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// explainer asks for the plan of what it is sent.
type explainer struct {
	conn *pgx.Conn
	plan string
}

func (e *explainer) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows, err := e.conn.Query(ctx, "EXPLAIN (COSTS OFF) "+sql, args...)
	if err != nil {
		return nil, err
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	e.plan = strings.Join(lines, "\n")
	return nil, errors.Join(err, errNoDatabase)
}

func TestStatementsUseTheIndex(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices+`; INSERT INTO invoices SELECT g, 'x' FROM generate_series(1, 5000) g; ANALYZE invoices;
		CREATE TABLE entries (account text, id bigint, amount numeric, fencing_token bigint, PRIMARY KEY (account, id));
		INSERT INTO entries SELECT 'a' || g, g, 1 FROM generate_series(1, 5000) g; ANALYZE entries`)
	e := &explainer{conn: d.Conn(t)}
	check := func(what, table string) {
		t.Helper()
		if e.plan == "" || strings.Contains(e.plan, "Seq Scan on "+table) || strings.Contains(e.plan, "Hash Join") {
			t.Errorf("%s:\n%s", what, e.plan)
		}
	}
	for verb, write := range verbs {
		_ = write(t.Context(), e, grant(7))
		check(verb, "invoices")
	}
	entries := fence.Table{Name: "entries", Key: []string{"account", "id"}}
	_ = entries.Update(t.Context(), e, grant(7), fence.Row{"account": "a1", "id": 1, "amount": 2})
	check("Update with two columns", "entries")
	_ = entries.Delete(t.Context(), e, grant(7), fence.Row{"account": "a1", "id": 1})
	check("Delete with two columns", "entries")
}

// What lets a write pass is looked up by the lock's name, however many leases there are.
func TestAFenceReadsTheLeaseOfItsLock(t *testing.T) {
	t.Parallel()
	d := fencedInvoices(t)
	d.Exec(t, `INSERT INTO pglock.leases (name, token) SELECT 'a' || g, 1 FROM generate_series(1, 1000) g`)
	d.Exec(t, `ANALYZE pglock.leases, pglock.fences`)
	const read = `SELECT coalesce(sum(coalesce(idx_tup_fetch, 0) + seq_tup_read), 0)::int FROM pg_stat_xact_all_tables WHERE relid = 'pglock.leases'::regclass`
	pool := d.Pool(t)
	for how, run := range transactions {
		for range 2 {
			var n int
			wantErr(t, how, run(bounded(t), pool, grant(7), func(tx pgx.Tx) error {
				for range 3 {
					if err := plainly(t.Context(), tx, grant(7)); err != nil {
						return err
					}
				}
				return tx.QueryRow(t.Context(), read).Scan(&n)
			}), nil)
			if n == 0 || n > 100 { // what transactions before have read may be counted as well
				t.Errorf("%s and three writes read %d leases", how, n)
			}
		}
	}
}
