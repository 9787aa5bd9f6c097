package pglock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// What a hook of the caller's pool answers is the hook's: it is neither taken for an error of ours nor tried for ever.
func TestAHooksErrorIsToldAsItIs(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	for _, code := range []string{"42P05", "25000", "42P01", "22023", "54000"} {
		pc, err := pgxpool.ParseConfig(d.URL)
		if err != nil {
			t.Fatal(err)
		}
		var connects atomic.Int32
		pc.AfterConnect = func(context.Context, *pgx.Conn) error {
			connects.Add(1)
			return &pgconn.PgError{Code: code, Message: "from the hook"}
		}
		pool, err := pgxpool.NewWithConfig(t.Context(), pc)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		c, err := pglock.New(pool, pglock.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { wantErr(t, "Close", c.Close(soon(t)), nil) })

		_, err = c.TryAcquire(soon(t), "a")
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != code || errors.Is(err, pglock.ErrNotMigrated) || errors.Is(err, pglock.ErrInvalidOption) {
			t.Errorf("a hook with %s: %v", code, err)
		}
		if n := connects.Load(); n != 1 {
			t.Errorf("a hook with %s: %d connections for one try", code, n)
		}
	}
}
