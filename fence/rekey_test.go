package fence_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// A new key is a delete under the old one and an insert under the new one.
func TestRekey(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	conn := d.Conn(t)
	for name, tt := range map[string]struct {
		setup string
		want  error
		left  string
	}{
		"moved":                         {`INSERT INTO invoices VALUES (1, 'old', 6)`, nil, "2 old 7"},
		"over an earlier tombstone":     {`INSERT INTO invoices VALUES (1, 'old', 6); SELECT pglock.fence_row_bury('invoices', ROW(2), 'billing', 0, 6)`, nil, "2 old 7"},
		"no row":                        {``, fence.ErrNoRow, "none"},
		"the row is later":              {`INSERT INTO invoices VALUES (1, 'old', 8)`, fence.ErrStale, "1 old 8"},
		"the row was written by it":     {`INSERT INTO invoices VALUES (1, 'old', 7)`, fence.ErrAlreadyWritten, "1 old 7"},
		"the row was deleted later":     {`SELECT pglock.fence_row_bury('invoices', ROW(1), 'billing', 0, 8)`, fence.ErrStale, "none"},
		"a replay":                      {`SELECT pglock.fence_row_bury('invoices', ROW(1), 'billing', 0, 7); INSERT INTO invoices VALUES (2, 'old', 7)`, fence.ErrAlreadyWritten, "2 old 7"},
		"the new key is taken":          {`INSERT INTO invoices VALUES (1, 'old', 6), (2, 'other', 5)`, fence.ErrRowExists, "1 old 6, 2 other 5"},
		"the new key is taken, later":   {`INSERT INTO invoices VALUES (1, 'old', 6), (2, 'other', 8)`, fence.ErrStale, "1 old 6, 2 other 8"},
		"the new key was deleted later": {`INSERT INTO invoices VALUES (1, 'old', 6); SELECT pglock.fence_row_bury('invoices', ROW(2), 'billing', 0, 8)`, fence.ErrStale, "1 old 6"},
	} {
		t.Run(name, func(t *testing.T) {
			d.Exec(t, `TRUNCATE invoices; DELETE FROM pglock.fences; `+tt.setup)
			ctx := bounded(t)
			wantErr(t, "Rekey", invoices.Rekey(ctx, conn, grant(7), key(1), key(2)), tt.want)
			if got := pgtest.Query[string](t, d, allSQL); got != tt.left {
				t.Errorf("left: %s, want %s", got, tt.left)
			}
			if tt.want != nil {
				return
			}
			wantStale(t, "late upsert under the old key", invoices.Upsert(ctx, conn, grant(6), invoice(1, "back")), 7)
			wantStale(t, "late update under the new key", invoices.Update(ctx, conn, grant(6), invoice(2, "late")), 7)
			if got := tombstones(t, d); got != "7" {
				t.Errorf("tombstones %q", got)
			}
		})
	}
}

// Whoever writes there meanwhile is waited for, under either key.
func TestRekeyWaitsForWhoeverIsAhead(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	a, b := d.Conn(t), d.Conn(t)
	for name, ahead := range map[string]func(tx pgx.Tx) error{
		"update of the row":     func(tx pgx.Tx) error { return invoices.Update(t.Context(), tx, grant(9), invoice(1, "first")) },
		"delete of the row":     func(tx pgx.Tx) error { return invoices.Delete(t.Context(), tx, grant(9), key(1)) },
		"insert at the new key": func(tx pgx.Tx) error { return invoices.Insert(t.Context(), tx, grant(9), invoice(2, "first")) },
		"rekey to the same":     func(tx pgx.Tx) error { return invoices.Rekey(t.Context(), tx, grant(9), key(3), key(2)) },
		"rekey of the same":     func(tx pgx.Tx) error { return invoices.Rekey(t.Context(), tx, grant(9), key(1), key(4)) },
		"rekey the other way":   func(tx pgx.Tx) error { return invoices.Rekey(t.Context(), tx, grant(9), key(1), key(0)) },
	} {
		for _, level := range levels {
			t.Run(name+"/"+string(level), func(t *testing.T) {
				d.Exec(t, `TRUNCATE invoices; DELETE FROM pglock.fences; INSERT INTO invoices VALUES (1, 'old', 6), (3, 'old', 6)`)
				first, second := begin(t, a, pgx.ReadCommitted), begin(t, b, level)
				wantErr(t, name, ahead(first), nil)
				got := waiting(t, d, func() error { return invoices.Rekey(bounded(t), second, grant(7), key(1), key(2)) })
				commit(t, first)
				err := <-got
				switch code := sqlState(err); {
				case code == "23505": // by a row that the snapshot does not show
				case level == pgx.ReadCommitted:
					wantStale(t, "Rekey", err, 9)
				case code != "40001":
					t.Errorf("Rekey = %v, want 40001", err)
				}
				rollback(t, second)
			})
		}
	}
}
