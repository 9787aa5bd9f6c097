package fence_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// several are the verbs on the invoices with these ids, in the order given.
var several = map[string]func(context.Context, fence.DB, fence.Grant, []int, ...fence.Option) error{
	"UpdateRows": func(ctx context.Context, db fence.DB, g fence.Grant, ids []int, opts ...fence.Option) error {
		return invoices.UpdateRows(ctx, db, g, invoicesWith(ids, "updated"), opts...)
	},
	"InsertRows": func(ctx context.Context, db fence.DB, g fence.Grant, ids []int, opts ...fence.Option) error {
		return invoices.InsertRows(ctx, db, g, invoicesWith(ids, "inserted"), opts...)
	},
	"UpsertRows": func(ctx context.Context, db fence.DB, g fence.Grant, ids []int, opts ...fence.Option) error {
		return invoices.UpsertRows(ctx, db, g, invoicesWith(ids, "upserted"), opts...)
	},
	"DeleteRows": func(ctx context.Context, db fence.DB, g fence.Grant, ids []int, opts ...fence.Option) error {
		rows := make([]fence.Row, len(ids))
		for i, id := range ids {
			rows[i] = key(id)
		}
		return invoices.DeleteRows(ctx, db, g, rows, opts...)
	},
}

func invoicesWith(ids []int, status string) []fence.Row {
	rows := make([]fence.Row, len(ids))
	for i, id := range ids {
		rows[i] = invoice(id, fmt.Sprint(status, id))
	}
	return rows
}

// all is every invoice: "1 new 7, 2 old 6".
const allSQL = `SELECT coalesce(string_agg(id || ' ' || coalesce(status, '-') || ' ' || fencing_token, ', ' ORDER BY id), 'none') FROM invoices`

func TestSeveralRowsAreWrittenTogetherOrNotAtAll(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	pool, setup := d.Pool(t), d.Conn(t)
	const old = `INSERT INTO invoices VALUES (1, 'old', 6), (2, 'old', 6), (3, 'old', 6);`
	const bury = `SELECT pglock.fence_row_bury('invoices', ROW(%d), 'billing', 0, %d);`
	for _, tt := range []struct {
		verb, setup string
		again       bool
		want        error
		names       string // the row that the error is about
		left        string // empty: as before
		tombstones  string
	}{
		{verb: "UpdateRows", setup: old, left: "1 updated1 7, 2 updated2 7, 3 updated3 7"},
		{verb: "UpdateRows", setup: old + `UPDATE invoices SET fencing_token = 8 WHERE id = 2`, want: fence.ErrStale, names: "id=2"},
		{verb: "UpdateRows", setup: old + `UPDATE invoices SET fencing_token = 7 WHERE id = 3`, want: fence.ErrAlreadyWritten, names: "id=3"},
		{verb: "UpdateRows", setup: old + `UPDATE invoices SET fencing_token = 7 WHERE id = 3`, again: true, left: "1 updated1 7, 2 updated2 7, 3 updated3 7"},
		{verb: "UpdateRows", setup: old + `DELETE FROM invoices WHERE id = 1`, want: fence.ErrNoRow, names: "id=1"},
		{verb: "UpdateRows", setup: old + `DELETE FROM invoices WHERE id = 1;` + fmt.Sprintf(bury, 1, 8), want: fence.ErrStale, names: "id=1"},
		{verb: "InsertRows", setup: ``, left: "1 inserted1 7, 2 inserted2 7, 3 inserted3 7"},
		{verb: "InsertRows", setup: `INSERT INTO invoices VALUES (2, 'old', 6)`, want: fence.ErrRowExists, names: "id=2"},
		{verb: "InsertRows", setup: `INSERT INTO invoices VALUES (2, 'old', 7)`, want: fence.ErrAlreadyWritten, names: "id=2"},
		{verb: "InsertRows", setup: fmt.Sprintf(bury, 3, 8), want: fence.ErrStale, names: "id=3"},
		{verb: "InsertRows", setup: fmt.Sprintf(bury, 3, 6), left: "1 inserted1 7, 2 inserted2 7, 3 inserted3 7"},
		{verb: "UpsertRows", setup: `INSERT INTO invoices VALUES (2, 'old', 6);` + fmt.Sprintf(bury, 3, 6), left: "1 upserted1 7, 2 upserted2 7, 3 upserted3 7"},
		{verb: "UpsertRows", setup: `INSERT INTO invoices VALUES (2, 'old', 8)`, want: fence.ErrStale, names: "id=2"},
		{verb: "UpsertRows", setup: `INSERT INTO invoices VALUES (2, 'old', 7)`, want: fence.ErrAlreadyWritten, names: "id=2"},
		{verb: "UpsertRows", setup: fmt.Sprintf(bury, 1, 8), want: fence.ErrStale, names: "id=1"},
		{verb: "DeleteRows", setup: old, left: "none", tombstones: "7 7 7"},
		{verb: "DeleteRows", setup: old + `UPDATE invoices SET fencing_token = 8 WHERE id = 2`, want: fence.ErrStale, names: "id=2"},
		{verb: "DeleteRows", setup: old + `DELETE FROM invoices WHERE id = 3`, want: fence.ErrNoRow, names: "id=3"},
		{verb: "DeleteRows", setup: fmt.Sprintf(bury+bury+bury, 1, 7, 2, 7, 3, 7), want: fence.ErrAlreadyWritten, names: "id=3"},
		{verb: "DeleteRows", setup: fmt.Sprintf(bury+bury+bury, 1, 7, 2, 7, 3, 7), again: true, left: "none", tombstones: "7 7 7"},
		{verb: "DeleteRows", setup: old + `DELETE FROM invoices WHERE id = 3;` + fmt.Sprintf(bury, 3, 7), again: true, want: fence.ErrNoRow, names: "id=3"},
	} {
		t.Run(fmt.Sprintf("%s/%s/%v", tt.verb, tt.setup, tt.again), func(t *testing.T) {
			exec(t, setup, `TRUNCATE invoices; DELETE FROM pglock.fences; `+tt.setup)
			before := pgtest.Query[string](t, d, allSQL)
			var opts []fence.Option
			if tt.again {
				opts = append(opts, fence.Again())
			}
			err := several[tt.verb](bounded(t), pool, grant(7), []int{3, 1, 2}, opts...)
			wantErr(t, tt.verb, err, tt.want)
			if tt.want != nil {
				tt.left = before
				if !strings.Contains(fmt.Sprint(err), tt.names) {
					t.Errorf("%v, want it to name %s", err, tt.names)
				}
			}
			if got := pgtest.Query[string](t, d, allSQL); got != tt.left {
				t.Errorf("left: %s, want %s", got, tt.left)
			}
			if got := tombstones(t, d); tt.want == nil && got != tt.tombstones {
				t.Errorf("tombstones %q, want %q", got, tt.tombstones)
			}
		})
	}
}

// Two statements over the same rows lock them in the same order, whatever the order they were asked in.
func TestStatementsOverTheSameRowsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	const rounds = 30
	up, down := make([]int, 20), make([]int, 20)
	for i := range up {
		up[i], down[i] = i, len(down)-1-i
	}
	errs := make(chan error, 2)
	for i, ids := range [][]int{up, down} {
		conn := d.Conn(t)
		go func() {
			var failed error
			for n := range rounds {
				g := grant(fence.Token(1 + 2*n + i))
				for _, verb := range []string{"UpsertRows", "UpdateRows", "DeleteRows"} {
					err := several[verb](context.WithoutCancel(t.Context()), conn, g, ids, fence.Again())
					if code := sqlState(err); code != "" {
						failed = errors.Join(failed, err)
					}
				}
			}
			errs <- failed
		}()
	}
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// A row that comes while an insert of several waits for its key is not in the snapshot: alone, the insert is sent again, and
// tells of it; in a transaction that it would leave half done, it fails.
func TestSeveralRowsMeetOneThatCameMeanwhile(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	a, b, setup := d.Conn(t), d.Conn(t), d.Conn(t)
	for _, inTx := range []bool{false, true} {
		for _, late := range []string{"InsertRows", "UpsertRows"} {
			t.Run(fmt.Sprintf("%s/%v", late, inTx), func(t *testing.T) {
				exec(t, setup, `TRUNCATE invoices; DELETE FROM pglock.fences`)
				ctx := bounded(t)
				first := begin(t, a, pgx.ReadCommitted)
				wantErr(t, "insert", invoices.Insert(ctx, first, grant(9), invoice(2, "first")), nil)
				var db fence.DB = b
				if inTx {
					second := begin(t, b, pgx.ReadCommitted)
					defer rollback(t, second)
					db = second
				}
				got := waiting(t, d, func() error { return several[late](ctx, db, grant(7), []int{1, 2, 3}) })
				commit(t, first)
				err := <-got
				if inTx {
					if sqlState(err) != "40001" {
						t.Errorf("%s = %v, want 40001", late, err)
					}
				} else {
					wantStale(t, late, err, 9)
				}
				if got := pgtest.Query[string](t, d, allSQL); got != "2 first 9" {
					t.Errorf("left: %s", got)
				}
			})
		}
	}
}

func TestAKeyThatStandsTwiceIsRefused(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	conn := d.Conn(t)
	for verb, write := range several {
		if verb == "UpdateRows" || verb == "DeleteRows" {
			d.Exec(t, `TRUNCATE invoices; INSERT INTO invoices VALUES (1, 'old', 1), (2, 'old', 1)`)
		} else {
			d.Exec(t, `TRUNCATE invoices`)
		}
		before := pgtest.Query[string](t, d, allSQL)
		if err := write(t.Context(), conn, grant(7), []int{1, 2, 1}); err == nil {
			t.Errorf("%s took a key twice", verb)
		}
		if got := pgtest.Query[string](t, d, allSQL); got != before {
			t.Errorf("%s left: %s", verb, got)
		}
	}
}

func TestAThousandRows(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	pool := d.Pool(t)
	ids := make([]int, 1000)
	for i := range ids {
		ids[i] = i
	}
	for i, verb := range []string{"InsertRows", "UpdateRows", "UpsertRows", "DeleteRows"} {
		wantErr(t, verb, several[verb](bounded(t), pool, grant(fence.Token(1+i)), ids), nil)
	}
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pglock.fences WHERE last_token = 4`); n != 1000 {
		t.Errorf("%d tombstones", n)
	}
}
