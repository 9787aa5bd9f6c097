package fence_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// Statements are prepared where the server itself is at the other end, and nobody has said that they shall not be.
func TestOnlyAConnectionToTheServerItselfPrepares(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	for name, tt := range map[string]struct {
		change func(*pgx.ConnConfig)
		want   bool
	}{
		"as it comes":        {func(*pgx.ConnConfig) {}, true},
		"described only":     {func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe }, false},
		"simple":             {func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol }, false},
		"no statement cache": {func(c *pgx.ConnConfig) { c.StatementCacheCapacity = 0; c.DefaultQueryExecMode = pgx.QueryExecModeExec }, false},
		"no cache of any kind": {func(c *pgx.ConnConfig) {
			c.DescriptionCacheCapacity = 0
			c.DefaultQueryExecMode = pgx.QueryExecModeExec
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := pgx.ParseConfig(d.URL)
			if err != nil {
				t.Fatal(err)
			}
			tt.change(cfg)
			conn, err := pgx.ConnectConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context()) //nolint:errcheck // nothing is left to say
			for token := range fence.Token(3) {
				wantErr(t, "Upsert", invoices.Upsert(t.Context(), conn, grant(1+token), invoice(1, "x")), nil)
				wantErr(t, "Tx", fence.Tx(t.Context(), conn, grant(1+token), "r", nothing), nil)
			}
			d.Exec(t, `TRUNCATE invoices; DELETE FROM pglock.fences`)
			var prepared int
			const sql = `SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%fence_raise%' OR statement LIKE '%fence_row%'`
			if err := conn.QueryRow(t.Context(), sql, pgx.QueryExecModeSimpleProtocol).Scan(&prepared); err != nil {
				t.Fatal(err)
			}
			if want := map[bool]int{true: 2}[tt.want]; prepared != want {
				t.Errorf("%d statements are prepared, want %d", prepared, want)
			}
		})
	}
}

// A transaction that is refused with its BEGIN costs its connection, never a later one's.
func TestAPoolLivesOnAfterARefusedTransaction(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	pool := d.Pool(t)
	wantErr(t, "Tx", fence.Tx(t.Context(), pool, grant(9), "r", nothing), nil)
	for range 3 {
		wantStale(t, "Tx", fence.Tx(t.Context(), pool, grant(7), "r", nothing), 9)
		wantErr(t, "Tx", fence.Tx(t.Context(), pool, grant(9), "r", nothing), nil)
	}
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections are still out", n)
	}
}
