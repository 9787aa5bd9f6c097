package fence_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
)

// silent is a database that must not be asked.
type silent struct{ t *testing.T }

func (s silent) QueryRow(_ context.Context, sql string, _ ...any) pgx.Row {
	s.t.Errorf("sent %s", sql)
	return failed{}
}

func (s silent) BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error) {
	s.t.Error("began a transaction")
	return nil, errors.New("no database here")
}

type failed struct{}

func (failed) Scan(...any) error { return errors.New("no database here") }

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
	}
}

func TestBadInputIsRefusedBeforeAnySQL(t *testing.T) {
	t.Parallel()
	ctx, db, g := t.Context(), silent{t}, grant(7)
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
		"no resource":    fence.Tx(ctx, db, g, "", nil),
		"long resource":  fence.Tx(ctx, db, g, strings.Repeat("r", 1025), nil),
		"NUL resource":   fence.Tx(ctx, db, g, "\x00", nil),
		"again":          fence.Tx(ctx, db, g, "r", nil, fence.Again()),
		"level":          fence.Tx(ctx, db, g, "r", nil, fence.Isolation("repeatable read; DROP TABLE invoices; --")),
		"capitals":       fence.Tx(ctx, db, g, "r", nil, fence.Isolation("SERIALIZABLE")),
		"no level":       fence.Tx(ctx, db, g, "r", nil, fence.Isolation("")),
		"level of a row": invoices.Update(ctx, db, g, invoice(1, "x"), fence.Isolation("")),
		"raise again":    fence.Raise(ctx, nil, g, "r", fence.Again()),
		"raise isolated": fence.Raise(ctx, nil, g, "r", fence.Isolation(pgx.Serializable)),
	} {
		wantErr(t, name, err, fence.ErrInvalid)
	}
}
