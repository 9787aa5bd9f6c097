package pglock_test

import (
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/jackc/pgx/v5"
)

// Locks are not acquired in a transaction of the caller's: one that is open changes no answer, and is left alone.
func TestAnOpenTransactionOfTheCallerIsNeitherUsedNorTouched(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			pool := d.Pool(t)
			c, err := pglock.New(pool, pglock.Config{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { wantErr(t, "Close", c.Close(soon(t)), nil) })
			take(t, client(t, d), "live")
			take(t, client(t, d), "expired", pglock.NoRenewal())
			tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
			if err != nil {
				t.Fatal(err)
			}
			var seen int // the snapshot is taken while both are held
			if err := tx.QueryRow(t.Context(), `SELECT count(*) FROM pglock.leases WHERE expires_at > clock_timestamp()`).Scan(&seen); err != nil || seen != 2 {
				t.Fatal(seen, err)
			}
			d.Age(t, "expired", time.Minute)

			refused(t, c, "live")
			l := take(t, c, "expired")
			if got := left(t, d, "expired"); got < pglock.DefaultTTL/2 {
				t.Errorf("%v left", got)
			}

			var untouched bool
			if err := tx.QueryRow(t.Context(), `SELECT pg_current_xact_id_if_assigned() IS NULL`).Scan(&untouched); err != nil || !untouched {
				t.Errorf("the transaction was used: %v, %v", !untouched, err)
			}
			if _, err := tx.Exec(t.Context(), `CREATE TABLE work (n int)`); err != nil {
				t.Error(err)
			}
			release(t, l)
			if err := tx.Commit(t.Context()); err != nil {
				t.Errorf("commit: %v", err)
			}
		})
	}
}
