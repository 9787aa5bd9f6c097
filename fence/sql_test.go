package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// openSQL opens a database through database/sql and the driver of pgx.
func openSQL(t *testing.T, url string) *sql.DB {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	db := stdlib.OpenDB(*cfg)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func TestRowsThroughDatabaseSQL(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	std := openSQL(t, d.URL)
	tx, err := std.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := std.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // the pool's
	for name, db := range map[string]fence.DB{"DB": fence.SQL(std), "Conn": fence.SQL(conn), "Tx": fence.SQL(tx)} {
		d.Exec(t, `TRUNCATE invoices; DELETE FROM pglock.fences`)
		ctx := bounded(t)
		wantErr(t, name, invoices.Update(ctx, db, grant(1), invoice(1, "x")), fence.ErrNoRow)
		wantErr(t, name, invoices.Insert(ctx, db, grant(1), invoice(1, "x")), nil)
		var got struct {
			Status       *string
			FencingToken fence.Token
		}
		wantErr(t, name, invoices.Update(ctx, db, grant(2), invoice(1, "y"), fence.Returning(&got)), nil)
		if got.Status == nil || *got.Status != "y" || got.FencingToken != 2 {
			t.Errorf("%s: returned %+v", name, got)
		}
		wantErr(t, name, invoices.Update(ctx, db, grant(2), invoice(1, "y")), fence.ErrAlreadyWritten)
		wantStale(t, name, invoices.Upsert(ctx, db, grant(1), invoice(1, "late")), 2)
		wantErr(t, name, invoices.UpsertRows(ctx, db, grant(3), invoicesWith([]int{3, 2}, "z")), nil)
		wantErr(t, name, invoices.Delete(ctx, db, grant(3), key(1)), nil)
		wantStale(t, name, invoices.Insert(ctx, db, grant(2), invoice(1, "back")), 3)
		if name == "Tx" {
			if err := tx.Commit(); err != nil {
				t.Error(err)
			}
		}
		if got := pgtest.Query[string](t, d, allSQL); got != "2 z2 3, 3 z3 3" {
			t.Errorf("%s left %s", name, got)
		}
	}
}

func TestTransactionsThroughDatabaseSQL(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, `CREATE TABLE ledger (entry text)`)
	std := openSQL(t, d.URL)
	ctx := bounded(t)
	enter := func(tx *sql.Tx, entry string) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO ledger VALUES ($1)`, entry)
		return err
	}
	ledger := func(want string) {
		t.Helper()
		if got := pgtest.Query[string](t, d, `SELECT coalesce(string_agg(entry, ' '), '') FROM ledger`); got != want {
			t.Errorf("the ledger has %q, want %q", got, want)
		}
	}
	for _, level := range levels {
		d.Exec(t, `TRUNCATE ledger; DELETE FROM pglock.fences`)
		wantErr(t, "TxSQL", fence.TxSQL(ctx, std, grant(7), "r", func(tx *sql.Tx) error {
			if got := isolation(t, tx); got != string(level) {
				t.Errorf("at %s, want %s", got, level)
			}
			return enter(tx, "first")
		}, fence.Isolation(level), fence.Also("s")), nil)
		wantStale(t, "late TxSQL", fence.TxSQL(ctx, std, grant(6), "s", func(tx *sql.Tx) error { return enter(tx, "late") }, fence.Isolation(level)), 7)
		fails := errors.New("it fails")
		wantErr(t, "failing TxSQL", fence.TxSQL(ctx, std, grant(8), "r", func(tx *sql.Tx) error {
			return errors.Join(enter(tx, "half"), fails)
		}, fence.Isolation(level)), fails)
		ledger("first")
	}

	tx, err := std.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, "RaiseSQL", fence.RaiseSQL(ctx, tx, grant(9), "r"), nil)
	wantStale(t, "late RaiseSQL", fence.RaiseSQL(ctx, tx, grant(8), "r"), 9)
	if err := tx.Rollback(); err != nil {
		t.Error(err)
	}

	g := held(t, d)
	d.Exec(t, `TRUNCATE ledger`)
	wantErr(t, "HeldTxSQL", fence.HeldTxSQL(ctx, std, g, func(_ context.Context, tx *sql.Tx) error { return enter(tx, "held") }), nil)
	if tx, err = std.BeginTx(ctx, nil); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "HoldSQL", fence.HoldSQL(ctx, tx, g, fence.Limit(time.Second)), nil)
	if err := tx.Rollback(); err != nil {
		t.Error(err)
	}
	d.Exec(t, `UPDATE pglock.leases SET expires_at = now() - interval '1 s'`)
	wantErr(t, "late HeldTxSQL", fence.HeldTxSQL(ctx, std, g, func(_ context.Context, tx *sql.Tx) error { return enter(tx, "late") }), fence.ErrExpired)
	ledger("held")
}

// A ctx that ended before the commit is no unknown outcome.
func TestEndedContextIsKnownNotToHaveCommitted(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, `CREATE TABLE ledger (entry text)`)
	std := openSQL(t, d.URL)
	ctx, cancel := context.WithCancel(t.Context())
	err := fence.TxSQL(ctx, std, grant(7), "r", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO ledger VALUES ('x')`)
		cancel()
		return err
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, fence.ErrCommitUnknown) {
		t.Errorf("%v, want the cancelled context and no unknown outcome", err)
	}
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM ledger`); n != 0 {
		t.Error("it was committed")
	}
}

func isolation(t *testing.T, tx *sql.Tx) (level string) {
	t.Helper()
	if err := tx.QueryRowContext(t.Context(), `SELECT current_setting('transaction_isolation')`).Scan(&level); err != nil {
		t.Error(err)
	}
	return level
}

// held is a grant of the lock "billing" that lives in this database, for a minute.
func held(t *testing.T, d *pgtest.Database) fence.Grant {
	t.Helper()
	d.Exec(t, `DELETE FROM pglock.leases; SELECT pglock.acquire(ARRAY['billing'], ARRAY[gen_random_uuid()], 'test', ARRAY[30000000]::bigint[])`)
	return grant(pgtest.Query[fence.Token](t, d, `SELECT token FROM pglock.leases WHERE name = 'billing'`))
}
