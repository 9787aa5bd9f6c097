package fence_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// A resource is one fence, and a lock one lock, whatever client_encoding the writer's session has: an earlier grant is refused by
// every way in.
func TestNamesAreTheSameInEveryEncodingOfTheClient(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, `CREATE TABLE ledger (id int); SELECT pglock.protect('ledger')`)
	d.Exec(t, `INSERT INTO pglock.leases (name, token, expires_at) VALUES ('straße', nextval('pglock.fencing_token'), clock_timestamp() + interval '1 h')`)
	token := fence.Token(pgtest.Query[int64](t, d, `SELECT token FROM pglock.leases`))
	g, late := fence.Grant{Lock: "straße", Token: token}, fence.Grant{Lock: "straße", Token: token - 1}
	cc, err := pgx.ParseConfig(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	cc.RuntimeParams["client_encoding"] = "LATIN1"
	conn, err := pgx.ConnectConfig(t.Context(), cc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) }) //nolint:errcheck // of the test
	db := stdlib.OpenDB(*cc)
	t.Cleanup(func() { db.Close() }) //nolint:errcheck // of the test
	ctx := bounded(t)
	wantErr(t, "Tx", fence.Tx(ctx, d.Pool(t), g, "用户", nothing, fence.Also("é")), nil)
	free := func(*sql.Tx) error { return nil }
	for what, write := range map[string]func(fence.Grant) error{
		"Tx":        func(g fence.Grant) error { return fence.Tx(ctx, conn, g, "é", nothing) },
		"Tx of two": func(g fence.Grant) error { return fence.Tx(ctx, conn, g, "é", nothing, fence.Also("用户")) },
		"TxSQL":     func(g fence.Grant) error { return fence.TxSQL(ctx, db, g, "用户", free) },
		"HeldTx": func(g fence.Grant) error {
			return fence.HeldTx(ctx, conn, g, func(context.Context, pgx.Tx) error { return nil })
		},
		"HeldTxSQL": func(g fence.Grant) error {
			return fence.HeldTxSQL(ctx, db, g, func(context.Context, *sql.Tx) error { return nil })
		},
		"StatedTx": func(g fence.Grant) error {
			return fence.StatedTx(ctx, conn, g, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `INSERT INTO ledger VALUES (1)`)
				return err
			})
		},
		"Raise of two": func(g fence.Grant) error {
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return fence.Raise(ctx, tx, g, "用户", fence.Also("é")) })
		},
	} {
		wantErr(t, what, write(g), nil)
		wantStale(t, what+" of an earlier grant", write(late), token)
	}
	if got := pgtest.Query[string](t, d, `SELECT string_agg(resource || ' of ' || name, ', ' ORDER BY resource) FROM pglock.fences WHERE relation = 0::oid AND resource <> ''`); got != "é of straße, 用户 of straße" {
		t.Errorf("the fences are %s, want one for each resource", got)
	}
}
