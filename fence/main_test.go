package fence_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// grant is a grant of the lock "billing", which the databases of most tests do not know: it lives elsewhere.
func grant(token fence.Token) fence.Grant { return fence.Grant{Lock: "billing", Token: token} }

var invoices = fence.Table{Name: "invoices", Key: []string{"id"}}

const createInvoices = `CREATE TABLE invoices (id int PRIMARY KEY, status text, fencing_token bigint)`

// invoice is a row for invoices.
func invoice(id int, status string) fence.Row { return fence.Row{"id": id, "status": status} }

// key is the key of one.
func key(id int) fence.Row { return fence.Row{"id": id} }

// What is left of invoice 1: "paid 7", or "none"; and the tokens that fenced deletes have left: "7", or "".
const (
	stateSQL      = `SELECT coalesce((SELECT status || ' ' || coalesce(fencing_token, 0) FROM invoices WHERE id = 1), 'none')`
	tombstonesSQL = `SELECT coalesce(string_agg(last_token::text, ' '), '') FROM pglock.fences WHERE relation <> 0::oid`
)

func state(t *testing.T, d *pgtest.Database) string { return pgtest.Query[string](t, d, stateSQL) }

func tombstones(t *testing.T, d *pgtest.Database) string {
	return pgtest.Query[string](t, d, tombstonesSQL)
}

// wantErr checks an error against a sentinel, or nil.
func wantErr(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s = %v, want %v", what, got, want)
	}
}

// wantStale checks that an error names the token that was there.
func wantStale(t *testing.T, what string, err error, last fence.Token) {
	t.Helper()
	var stale *fence.StaleError
	if !errors.Is(err, fence.ErrStale) || !errors.As(err, &stale) {
		t.Errorf("%s = %v, want ErrStale", what, err)
		return
	}
	if stale.LastToken != last {
		t.Errorf("%s: the last token is %d, want %d", what, stale.LastToken, last)
	}
}

// sqlState is the code of PostgreSQL's error.
func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// bounded is a context that ends a test which hangs.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func exec(t *testing.T, conn interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
}, sql string,
) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

// begin begins a transaction, and takes its snapshot where it has one for good.
func begin(t *testing.T, conn *pgx.Conn, level pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	exec(t, tx, `SELECT count(*) FROM invoices`)
	return tx
}

func commit(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func rollback(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// nothing is what a transaction does that must not run, or need not.
func nothing(pgx.Tx) error { return nil }

// levels are the isolation levels that PostgreSQL tells apart.
var levels = []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}
