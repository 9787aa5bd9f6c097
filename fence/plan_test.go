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
