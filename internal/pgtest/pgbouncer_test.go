package pgtest_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// More clients than servers, each in a transaction of its own after the other: sessions are shared.
func TestPgBouncerPoolsTransactions(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	role := d.Role(t)
	url := pgtest.PgBouncer(t, d)
	backends := map[int]bool{}
	for range 6 {
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		var pid int
		if err := conn.QueryRow(t.Context(), `SELECT pg_backend_pid()`, pgx.QueryExecModeExec).Scan(&pid); err != nil {
			t.Fatal(err)
		}
		backends[pid] = true
	}
	if len(backends) > 3 {
		t.Errorf("six clients used %d servers, want 3 at most", len(backends))
	}
	as := pgtest.Database{Name: d.Name, URL: url}
	conn, err := pgx.Connect(t.Context(), as.URLAs(role))
	if err != nil {
		t.Fatalf("as another role: %v", err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), `SELECT 1`); err != nil {
		t.Error(err)
	}
}
