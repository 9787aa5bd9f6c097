package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/fence"
)

// silent is a database that must not be asked.
type silent struct{ t *testing.T }

func (s silent) Query(_ context.Context, sql string, _ ...any) (pgx.Rows, error) {
	s.t.Errorf("sent %s", sql)
	return nil, errNoDatabase
}

func (s silent) BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error) {
	s.t.Error("began a transaction")
	return nil, errNoDatabase
}

var errNoDatabase = errors.New("no database here")

func TestBadGrantsAreRefusedBeforeAnySQL(t *testing.T) {
	t.Parallel()
	db := silent{t}
	for name, g := range map[string]fence.Grant{
		"zero":       {},
		"token 0":    {Lock: "a"},
		"negative":   {Lock: "a", Token: -1},
		"2^53":       {Lock: "a", Token: 1 << 53},
		"largest":    {Lock: "a", Token: math.MaxInt64},
		"no name":    {Token: 1},
		"long name":  {Lock: strings.Repeat("a", 256), Token: 1},
		"NUL":        {Lock: "a\x00b", Token: 1},
		"not UTF-8":  {Lock: "\xff", Token: 1},
		"slot":       {Lock: "a", Slot: -1, Token: 1},
		"large slot": {Lock: "a", Slot: math.MaxInt32 + 1, Token: 1},
	} {
		g = g.OnStale(func(err error) { t.Errorf("%s: the lease was told %v", name, err) })
		for verb, write := range verbs {
			wantErr(t, verb+" with "+name, write(t.Context(), db, g), fence.ErrNoToken)
		}
		wantErr(t, "Tx with "+name, fence.Tx(t.Context(), db, g, "r", nil), fence.ErrNoToken)
		wantErr(t, "Raise with "+name, fence.Raise(t.Context(), nil, g, "r"), fence.ErrNoToken)
		wantErr(t, "HeldTx with "+name, fence.HeldTx(t.Context(), db, g, nil), fence.ErrNoToken)
		wantErr(t, "Hold with "+name, fence.Hold(t.Context(), nil, g), fence.ErrNoToken)
	}
}

func TestBadInputIsRefusedBeforeAnySQL(t *testing.T) {
	t.Parallel()
	ctx, db, g := t.Context(), silent{t}, grant(7)
	held := func(context.Context, pgx.Tx) error { t.Error("it ran"); return nil }
	table := func(name string, key ...string) fence.Table { return fence.Table{Name: name, Key: key} }
	for name, err := range map[string]error{
		"no table":       table("", "id").Update(ctx, db, g, invoice(1, "x")),
		"two dots":       table("a..b", "id").Update(ctx, db, g, invoice(1, "x")),
		"last dot":       table("a.", "id").Update(ctx, db, g, invoice(1, "x")),
		"four parts":     table("a.b.c.d", "id").Update(ctx, db, g, invoice(1, "x")),
		"open quote":     table(`"a`, "id").Update(ctx, db, g, invoice(1, "x")),
		"empty quotes":   table(`""`, "id").Update(ctx, db, g, invoice(1, "x")),
		"injection":      table("a; DROP TABLE b", "id").Update(ctx, db, g, invoice(1, "x")),
		"digit":          table("1a", "id").Update(ctx, db, g, invoice(1, "x")),
		"hyphen":         table("a-b", "id").Update(ctx, db, g, invoice(1, "x")),
		"NUL in table":   table("\"a\x00\"", "id").Update(ctx, db, g, invoice(1, "x")),
		"no key":         table("a").Update(ctx, db, g, invoice(1, "x")),
		"key twice":      table("a", "id", "id").Update(ctx, db, g, invoice(1, "x")),
		"key missing":    table("a", "id", "no").Update(ctx, db, g, invoice(1, "x")),
		"key nil":        table("a", "id").Update(ctx, db, g, fence.Row{"id": nil}),
		"no row":         table("a", "id").Insert(ctx, db, g, nil),
		"empty column":   table("a", "id").Update(ctx, db, g, fence.Row{"id": 1, "": 1}),
		"NUL in column":  table("a", "id").Update(ctx, db, g, fence.Row{"id": 1, "b\x00": 1}),
		"token by hand":  invoices.Update(ctx, db, g, fence.Row{"id": 1, "fencing_token": 1}),
		"delete of more": invoices.Delete(ctx, db, g, invoice(1, "x")),
		"empty schema":   invoices.Update(ctx, db, g, invoice(1, "x"), fence.Schema("")),
		"isolation":      invoices.Update(ctx, db, g, invoice(1, "x"), fence.Isolation(pgx.Serializable)),
		"no resource":    fence.Tx(ctx, db, g, "", nothing),
		"long resource":  fence.Tx(ctx, db, g, strings.Repeat("r", 1025), nothing),
		"NUL resource":   fence.Tx(ctx, db, g, "\x00", nothing),
		"again":          fence.Tx(ctx, db, g, "r", nothing, fence.Again()),
		"level":          fence.Tx(ctx, db, g, "r", nothing, fence.Isolation("repeatable read; DROP TABLE invoices; --")),
		"capitals":       fence.Tx(ctx, db, g, "r", nothing, fence.Isolation("SERIALIZABLE")),
		"no level":       fence.Tx(ctx, db, g, "r", nothing, fence.Isolation("")),
		"level of a row": invoices.Update(ctx, db, g, invoice(1, "x"), fence.Isolation("")),
		"raise again":    fence.Raise(ctx, nil, g, "r", fence.Again()),
		"no database":    invoices.Update(ctx, nil, g, invoice(1, "x")),
		"nil *sql.DB":    invoices.Update(ctx, fence.SQL((*sql.DB)(nil)), g, invoice(1, "x")),
		"nil QuerierSQL": invoices.Update(ctx, fence.SQL(nil), g, invoice(1, "x")),
		"nil pool":       invoices.Update(ctx, (*pgxpool.Pool)(nil), g, invoice(1, "x")),
		"tx on nil":      fence.Tx(ctx, nil, g, "r", nothing),
		"tx on nil pool": fence.Tx(ctx, (*pgxpool.Pool)(nil), g, "r", nothing),
		"tx of nothing":  fence.Tx(ctx, db, g, "r", nil),
		"raise on nil":   fence.Raise(ctx, nil, g, "r"),
		"held on nil":    fence.HeldTx(ctx, (*pgxpool.Pool)(nil), g, held),
		"held nothing":   fence.HeldTx(ctx, db, g, nil),
		"held again":     fence.HeldTx(ctx, db, g, held, fence.Again()),
		"held level":     fence.HeldTx(ctx, db, g, held, fence.Isolation("strict")),
		"held no time":   fence.HeldTx(ctx, db, g, held, fence.Limit(0)),
		"held long":      fence.HeldTx(ctx, db, g, held, fence.Limit(25*24*time.Hour)),
		"hold on nil":    fence.Hold(ctx, nil, g),
		"hold isolated":  fence.Hold(ctx, nil, g, fence.Isolation(pgx.Serializable)),
		"limit of a tx":  fence.Tx(ctx, db, g, "r", nothing, fence.Limit(time.Second)),
		"limit of a row": invoices.Update(ctx, db, g, invoice(1, "x"), fence.Limit(time.Second)),
		"raise isolated": fence.Raise(ctx, nil, g, "r", fence.Isolation(pgx.Serializable)),
	} {
		wantErr(t, name, err, fence.ErrInvalid)
	}
}
