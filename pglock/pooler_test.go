package pglock_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pooler starts PgBouncer in transaction mode before a database, and returns the database's URL through it.
func pooler(t *testing.T, d *pgtest.Database, settings ...string) string {
	t.Helper()
	return pgtest.PgBouncer(t, d, settings...)
}

// pooled is a client on a pool with pgx's default settings, and the pool.
func pooled(t *testing.T, url string, cfg pglock.Config) (*pgxpool.Pool, *pglock.Client) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	c, err := pglock.New(pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { wantErr(t, "Close", c.Close(soon(t)), nil) })
	return pool, c
}

var poolers = map[string][]string{
	"refuses parameters": nil,
	"ignores parameters": {"ignore_startup_parameters = default_transaction_isolation,default_transaction_read_only,statement_timeout,lock_timeout,idle_session_timeout"},
}

func TestLocksWorkBehindATransactionPooler(t *testing.T) {
	t.Parallel()
	for what, settings := range poolers {
		for role, setup := range map[string]string{
			"":              ``,
			", strict role": `ALTER DATABASE %s SET default_transaction_isolation = 'serializable'; ALTER DATABASE %[1]s SET statement_timeout = '200ms'; ALTER DATABASE %[1]s SET datestyle = 'German'`,
		} {
			t.Run(what+role, func(t *testing.T) {
				t.Parallel()
				const clients, rounds = 8, 25
				d := pgtest.DB(t)
				if setup != "" {
					d.Exec(t, fmt.Sprintf(setup, d.Name))
				}
				url := pooler(t, d, settings...)
				var all sync.WaitGroup
				var inside sync.Mutex
				ctx := slow(t)
				for i := range clients {
					_, c := pooled(t, url, pglock.Config{})
					name := []string{"shared", fmt.Sprint("own ", i)}[i%2]
					all.Go(func() {
						for range rounds {
							l, err := c.Acquire(ctx, name)
							if err != nil {
								t.Errorf("Acquire: %v", err)
								return
							}
							if name == "shared" && !inside.TryLock() {
								t.Error("two holders")
							}
							wantErr(t, "Renew", l.Renew(ctx), nil)
							if name == "shared" {
								inside.Unlock()
							}
							wantErr(t, "Release", l.Release(ctx), nil)
						}
						if s, err := c.Inspect(ctx, name); err != nil || s.Name != name || s.Token == 0 {
							t.Errorf("Inspect = %+v, %v", s, err)
						}
					})
				}
				all.Wait()
				if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pglock.leases WHERE expires_at > clock_timestamp()`); n != 0 {
					t.Errorf("%d locks are left", n)
				}
				if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`); n != 0 {
					t.Errorf("%d advisory locks are left", n)
				}
			})
		}
	}
}
