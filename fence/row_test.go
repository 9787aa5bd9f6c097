package fence_test

import (
	"context"
	"testing"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// verbs are the four of them on invoice 1.
var verbs = map[string]func(context.Context, fence.DB, fence.Grant, ...fence.Option) error{
	"Update": func(ctx context.Context, db fence.DB, g fence.Grant, opts ...fence.Option) error {
		return invoices.Update(ctx, db, g, invoice(1, "updated"), opts...)
	},
	"Insert": func(ctx context.Context, db fence.DB, g fence.Grant, opts ...fence.Option) error {
		return invoices.Insert(ctx, db, g, invoice(1, "inserted"), opts...)
	},
	"Upsert": func(ctx context.Context, db fence.DB, g fence.Grant, opts ...fence.Option) error {
		return invoices.Upsert(ctx, db, g, invoice(1, "upserted"), opts...)
	},
	"Delete": func(ctx context.Context, db fence.DB, g fence.Grant, opts ...fence.Option) error {
		return invoices.Delete(ctx, db, g, key(1), opts...)
	},
}

// Every verb, under token 7, on every state that a row can be in.
func TestVerbs(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	pool, setup := d.Pool(t), d.Conn(t)
	states := map[string]string{
		"none":      ``,
		"null":      `INSERT INTO invoices VALUES (1, 'old', NULL)`,
		"before":    `INSERT INTO invoices VALUES (1, 'old', 6)`,
		"same":      `INSERT INTO invoices VALUES (1, 'old', 7)`,
		"later":     `INSERT INTO invoices VALUES (1, 'old', 8)`,
		"deleted 6": `SELECT pglock.fence_row_bury('invoices', ROW(1), 'billing', 0, 6)`,
		"deleted 7": `SELECT pglock.fence_row_bury('invoices', ROW(1), 'billing', 0, 7)`,
		"deleted 8": `SELECT pglock.fence_row_bury('invoices', ROW(1), 'billing', 0, 8)`,
	}
	const stale = 8 // the token that is there
	tests := []struct {
		verb, state string
		again       bool
		want        error // nil: it is written
		row, buried string
	}{
		{verb: "Update", state: "none", want: fence.ErrNoRow, row: "none"},
		{verb: "Update", state: "null", row: "updated 7"},
		{verb: "Update", state: "before", row: "updated 7"},
		{verb: "Update", state: "same", want: fence.ErrAlreadyWritten, row: "old 7"},
		{verb: "Update", state: "same", again: true, row: "updated 7"},
		{verb: "Update", state: "later", want: fence.ErrStale, row: "old 8"},
		{verb: "Update", state: "later", again: true, want: fence.ErrStale, row: "old 8"},
		{verb: "Update", state: "deleted 6", want: fence.ErrNoRow, row: "none", buried: "6"},
		{verb: "Update", state: "deleted 7", want: fence.ErrAlreadyWritten, row: "none", buried: "7"},
		{verb: "Update", state: "deleted 7", again: true, want: fence.ErrNoRow, row: "none", buried: "7"},
		{verb: "Update", state: "deleted 8", want: fence.ErrStale, row: "none", buried: "8"},

		{verb: "Insert", state: "none", row: "inserted 7"},
		{verb: "Insert", state: "null", want: fence.ErrRowExists, row: "old 0"},
		{verb: "Insert", state: "before", want: fence.ErrRowExists, row: "old 6"},
		{verb: "Insert", state: "same", want: fence.ErrAlreadyWritten, row: "old 7"},
		{verb: "Insert", state: "same", again: true, want: fence.ErrAlreadyWritten, row: "old 7"},
		{verb: "Insert", state: "later", want: fence.ErrStale, row: "old 8"},
		{verb: "Insert", state: "deleted 6", row: "inserted 7"},
		{verb: "Insert", state: "deleted 7", want: fence.ErrAlreadyWritten, row: "none", buried: "7"},
		{verb: "Insert", state: "deleted 7", again: true, row: "inserted 7"},
		{verb: "Insert", state: "deleted 8", want: fence.ErrStale, row: "none", buried: "8"},

		{verb: "Upsert", state: "none", row: "upserted 7"},
		{verb: "Upsert", state: "null", row: "upserted 7"},
		{verb: "Upsert", state: "before", row: "upserted 7"},
		{verb: "Upsert", state: "same", want: fence.ErrAlreadyWritten, row: "old 7"},
		{verb: "Upsert", state: "same", again: true, row: "upserted 7"},
		{verb: "Upsert", state: "later", want: fence.ErrStale, row: "old 8"},
		{verb: "Upsert", state: "deleted 6", row: "upserted 7"},
		{verb: "Upsert", state: "deleted 7", want: fence.ErrAlreadyWritten, row: "none", buried: "7"},
		{verb: "Upsert", state: "deleted 7", again: true, row: "upserted 7"},
		{verb: "Upsert", state: "deleted 8", want: fence.ErrStale, row: "none", buried: "8"},

		{verb: "Delete", state: "none", want: fence.ErrNoRow, row: "none"},
		{verb: "Delete", state: "null", row: "none", buried: "7"},
		{verb: "Delete", state: "before", row: "none", buried: "7"},
		{verb: "Delete", state: "same", want: fence.ErrAlreadyWritten, row: "old 7"},
		{verb: "Delete", state: "same", again: true, row: "none", buried: "7"},
		{verb: "Delete", state: "later", want: fence.ErrStale, row: "old 8"},
		{verb: "Delete", state: "deleted 6", want: fence.ErrNoRow, row: "none", buried: "6"},
		{verb: "Delete", state: "deleted 7", want: fence.ErrAlreadyWritten, row: "none", buried: "7"},
		{verb: "Delete", state: "deleted 7", again: true, row: "none", buried: "7"},
		{verb: "Delete", state: "deleted 8", want: fence.ErrStale, row: "none", buried: "8"},
	}
	for _, tt := range tests {
		name, opts := tt.verb+"/"+tt.state, []fence.Option(nil)
		if tt.again {
			name, opts = name+"/again", []fence.Option{fence.Again()}
		}
		t.Run(name, func(t *testing.T) {
			exec(t, setup, `TRUNCATE invoices; DELETE FROM pglock.fences; `+states[tt.state])
			reports := 0
			g := grant(7).OnStale(func(error) { reports++ })
			err := verbs[tt.verb](t.Context(), pool, g, opts...)
			if tt.want == fence.ErrStale {
				wantStale(t, tt.verb, err, stale)
				if reports != 1 {
					t.Errorf("the lease was told %d times, want once", reports)
				}
			} else {
				wantErr(t, tt.verb, err, tt.want)
				if reports != 0 {
					t.Errorf("the lease was told to end: %v", err)
				}
			}
			var row, buried string
			if err := setup.QueryRow(t.Context(), `SELECT (`+stateSQL+`), (`+tombstonesSQL+`)`).Scan(&row, &buried); err != nil {
				t.Fatal(err)
			}
			if row != tt.row || buried != tt.buried {
				t.Errorf("the row is %q beside the tombstone %q, want %q and %q", row, buried, tt.row, tt.buried)
			}
		})
	}
}
