package pglock_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// hooked is a pool whose connections are set up by a hook.
func hooked(t *testing.T, url, sql string) *pgxpool.Pool {
	t.Helper()
	pc, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	pc.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error { _, err := conn.Exec(ctx, sql); return err }
	pool, err := pgxpool.NewWithConfig(t.Context(), pc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Wherever it comes from, a stricter isolation level lets no serialization failure through to the callers.
func TestNoIsolationLevelBreaksExclusionOrLeaksAFailure(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"serializable", "repeatable read"} {
		for from, url := range map[string]func(t *testing.T, d *pgtest.Database) string{
			"the role": func(t *testing.T, d *pgtest.Database) string {
				role := d.Role(t)
				d.Exec(t, fmt.Sprintf(`SELECT pglock.grant_locker('%s'); ALTER ROLE %[1]s SET default_transaction_isolation = '%s'`, role, level))
				return d.URLAs(role)
			},
			"the database": func(t *testing.T, d *pgtest.Database) string {
				d.Exec(t, fmt.Sprintf(`ALTER DATABASE %s SET default_transaction_isolation = '%s'`, d.Name, level))
				return d.URL
			},
			"the DSN": func(t *testing.T, d *pgtest.Database) string {
				return with(t, d.URL, "default_transaction_isolation", level)
			},
			"a hook": func(_ *testing.T, d *pgtest.Database) string { return d.URL },
		} {
			if level != "serializable" && from != "the role" {
				continue // one after the other, and not more than it takes: each client costs two connections
			}
			t.Run(level+" by "+from, func(t *testing.T) {
				d := pgtest.DB(t)
				u := url(t, d)
				clients := pgtest.Rounds(6, 16)
				if from != "the role" {
					clients = pgtest.Rounds(3, 4) // whether it is set elsewhere is soon seen
				}
				contend(t, d, clients, func() *pglock.Client {
					if from != "a hook" {
						return open(t, u, pglock.Config{})
					}
					c, err := pglock.New(hooked(t, u, fmt.Sprintf(`SET default_transaction_isolation = '%s'`, level)), pglock.Config{})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { wantErr(t, "Close", c.Close(soon(t)), nil) })
					return c
				})
			})
		}
	}
}

// contend has some clients acquire and release one lock 300 times in all.
func contend(t *testing.T, d *pgtest.Database, clients int, client func() *pglock.Client) {
	t.Helper()
	var inside, rounds atomic.Int32
	var all sync.WaitGroup
	for range clients {
		c := client()
		all.Go(func() {
			for rounds.Add(1) <= 300 {
				l, err := c.Acquire(t.Context(), "a")
				if err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d holders", n)
				}
				inside.Add(-1)
				if err := l.Release(t.Context()); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
		})
	}
	all.Wait()
	if holds(t, d, "a") {
		t.Error("held after the last release")
	}
}
