package pglock_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/jackc/pgx/v5/pgxpool"
)

// small is a client on a pool of n connections.
func small(t *testing.T, d *pgtest.Database, n int32, cfg pglock.Config) (*pgxpool.Pool, *pglock.Client) {
	t.Helper()
	pc, err := pgxpool.ParseConfig(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	pc.MaxConns = n
	pool, err := pgxpool.NewWithConfig(t.Context(), pc)
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

func TestAPoolOfOneConnectionIsEnough(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	pool, c := small(t, d, 1, pglock.Config{})
	err := c.Do(soon(t), "a", func(ctx context.Context, l *pglock.Lease) error {
		_, err := pool.Exec(ctx, `CREATE TABLE work (n int)`)
		return err
	})
	wantErr(t, "Do with a query", err, nil)
}

func TestAnExhaustedPoolCostsNoLease(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	pool, c := small(t, d, 1, pglock.Config{RenewEvery: 100 * time.Millisecond})
	conn, err := pool.Acquire(t.Context()) // the only one, and never given back
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	l := take(t, c, "a")
	for range 5 {
		renewedAgain(t, d, "a")
	}
	take(t, c, "b")
	if _, err := c.Inspect(soon(t), "a"); err != nil {
		t.Errorf("Inspect: %v", err)
	}
	stillHeld(t, d, l)
	release(t, l)
}

func TestHoldersThatQueryThroughTheirPoolDoNotStarveEachOther(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	pool, c := small(t, d, 2, pglock.Config{})
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			err := c.Do(soon(t), string(rune('a'+i)), func(ctx context.Context, _ *pglock.Lease) error {
				_, err := pool.Exec(ctx, `SELECT 1`)
				return err
			})
			wantErr(t, "Do", err, nil)
		})
	}
	happens(t, "all are done", async(func() bool { all.Wait(); return true }))
}

func TestOpenAndNewAreTheSame(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	_, byPool := small(t, d, 1, pglock.Config{Owner: "by pool"})
	byURL := open(t, d.URL, pglock.Config{Owner: "by URL"})
	l := take(t, byPool, "a")
	if held := refused(t, byURL, "a"); held.Owner != "by pool" {
		t.Errorf("held by %q", held.Owner)
	}
	release(t, l)
	take(t, byURL, "a")
	if held := refused(t, byPool, "a"); held.Owner != "by URL" {
		t.Errorf("held by %q", held.Owner)
	}
}

// What the pool does for its connections is done for those of the client too.
func TestTheHooksOfThePoolAreKept(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	role := d.Role(t)
	d.Exec(t, `SELECT pglock.grant_locker('`+role+`')`)
	c, err := pglock.New(hooked(t, d.URL, `SET ROLE `+role+`; SET statement_timeout = '20ms'; SET search_path = ''`), pglock.Config{RenewEvery: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { wantErr(t, "Close", c.Close(soon(t)), nil) })
	l, err := c.Acquire(soon(t), "a")
	if err != nil {
		t.Fatal(err)
	}
	renewedAgain(t, d, "a")
	stillHeld(t, d, l)
	_, err = c.Inspect(soon(t), "a")
	if state(err) != "57014" { // by the timeout
		wantErr(t, "Inspect as that role", err, pglock.ErrNotAllowed)
	}
}
