package fence_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

type stamped struct {
	FencingToken fence.Token
	At           time.Time `db:"written_at"`
}

type order struct {
	ID         int
	CustomerID *int
	Note       string
	Total      pgtype.Numeric
	Ignored    string `db:"-"`
	stamped
}

func TestReturning(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, `CREATE TABLE orders (id int PRIMARY KEY, customer_id int, note text, total numeric, written_at timestamptz DEFAULT now(), fencing_token bigint)`)
	pool := d.Pool(t)
	orders := fence.Table{Name: "orders", Key: []string{"id"}}
	ctx := t.Context()

	var o order
	wantErr(t, "insert", orders.Insert(ctx, pool, grant(1), fence.Row{"id": 1, "customer_id": 5, "note": "x"}, fence.Returning(&o)), nil)
	if o.ID != 1 || o.CustomerID == nil || *o.CustomerID != 5 || o.Note != "x" || o.Total.Valid || o.FencingToken != 1 || time.Since(o.At) > time.Hour {
		t.Errorf("inserted: %+v", o)
	}
	wantErr(t, "update", orders.Update(ctx, pool, grant(2), fence.Row{"id": 1, "customer_id": nil, "note": nil, "total": "1.5"}, fence.Returning(&o)), nil)
	if o.CustomerID != nil || o.Note != "" || !o.Total.Valid || o.FencingToken != 2 {
		t.Errorf("updated: %+v", o)
	}
	before := o
	wantStale(t, "late update", orders.Update(ctx, pool, grant(1), fence.Row{"id": 1, "note": "late"}, fence.Returning(&o)), 2)
	if o != before {
		t.Errorf("a refused write gave %+v", o)
	}
	wantErr(t, "delete", orders.Delete(ctx, pool, grant(3), fence.Row{"id": 1}, fence.Returning(&o)), nil)
	if o.ID != 1 || o.FencingToken != 2 {
		t.Errorf("deleted: %+v, want it as it was", o)
	}

	var several []order
	rows := []fence.Row{{"id": 9, "note": "nine"}, {"id": 7, "note": "seven"}, {"id": 8, "note": "eight"}}
	wantErr(t, "upsert", orders.UpsertRows(ctx, pool, grant(4), rows, fence.Returning(&several)), nil)
	if len(several) != 3 || several[0].Note != "nine" || several[1].ID != 7 || several[2].Note != "eight" {
		t.Errorf("upserted: %+v", several)
	}
	wantErr(t, "rekey", orders.Rekey(ctx, pool, grant(5), fence.Row{"id": 7}, fence.Row{"id": 6}, fence.Returning(&o)), nil)
	if o.ID != 6 || o.Note != "seven" || o.FencingToken != 5 {
		t.Errorf("rekeyed: %+v", o)
	}
}

// A value that does not fit is found after the write: the same write again says that it was made.
func TestReturningWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	pool := d.Pool(t)
	var wrong struct{ Status int }
	if err := invoices.Insert(t.Context(), pool, grant(1), invoice(1, "x"), fence.Returning(&wrong)); err == nil {
		t.Error("text was read as a number")
	}
	wantErr(t, "again", invoices.Insert(t.Context(), pool, grant(1), invoice(1, "x")), fence.ErrAlreadyWritten)
}
