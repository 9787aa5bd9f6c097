package advisory_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock/advisory"
)

// swallow makes PgBouncer accept the settings of a session lock, and forget them: people write such lines to get drivers to work.
const swallow = "ignore_startup_parameters = pglock.session,idle_session_timeout,statement_timeout,default_transaction_isolation," +
	"tcp_keepalives_idle,tcp_keepalives_interval,tcp_keepalives_count,tcp_user_timeout,extra_float_digits,search_path"

// Case C7: session locks are refused at once behind a transaction pooler, busy or idle, and one that swallows settings; nothing
// is left at the server.
func TestASessionLockIsRefusedBehindATransactionPooler(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]string{"as it is": "", "swallowing settings": swallow} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.Empty(t)
			url := pgtest.PgBouncer(t, d, settings)
			c := open(t, url, advisory.Config{})
			refuse := func(what string) {
				t.Helper()
				_, err := c.TryAcquire(soon(t), advisory.Name("a"))
				wantErr(t, "TryAcquire, "+what, err, advisory.ErrPooler)
				_, err = c.Acquire(soon(t), advisory.Name("a"))
				wantErr(t, "Acquire, "+what, err, advisory.ErrPooler)
				for _, part := range []string{"directly", "InTx", "package pglock"} {
					if err == nil || !strings.Contains(err.Error(), part) {
						t.Errorf("%v does not say what to do instead: %s", err, part)
					}
				}
			}
			refuse("idle") // where one backend answers all
			if n := locks(t, d); n != 0 {
				t.Errorf("%d locks are left at the server", n)
			}
			stop := busy(t, url)
			refuse("busy")
			stop()
			if n := locks(t, d); n != 0 {
				t.Errorf("%d locks are left at the server", n)
			}
			if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%pg_try_advisory_lock%' AND pid <> pg_backend_pid()`); n != 0 {
				t.Errorf("%d backends of the pooler were asked for a lock", n)
			}
		})
	}
}

// busy makes two clients of a pooler run transactions until it is told to stop.
func busy(t *testing.T, url string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var clients sync.WaitGroup
	started := make(chan struct{}, 2)
	for range 2 {
		conn, err := pgx.Connect(soon(t), url)
		if err != nil {
			t.Fatal(err)
		}
		clients.Go(func() {
			defer conn.Close(context.Background())
			for i := 0; ctx.Err() == nil; i++ {
				if _, err := conn.Exec(ctx, `BEGIN; SELECT count(*) FROM pg_class; COMMIT`); err != nil && ctx.Err() == nil {
					t.Errorf("a busy client: %v", err)
				}
				if i == 0 {
					started <- struct{}{}
				}
			}
		})
	}
	for range 2 {
		happens(t, "a busy client begins", started)
	}
	return func() { cancel(); clients.Wait() }
}

// What is of a transaction works there, with a pool as people have it and a pooler that is busy.
func TestTransactionLocksWorkBehindATransactionPooler(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	url := pgtest.PgBouncer(t, d)
	pool, err := pgxpool.New(soon(t), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	defer busy(t, url)()
	key := advisory.Name("a")
	for range 5 {
		held := make(chan struct{})
		answers := make(chan error, 1)
		err := pgx.BeginFunc(soon(t), pool, func(one pgx.Tx) error {
			if err := advisory.InTx(one).TryAcquire(soon(t), key); err != nil {
				return err
			}
			go func() {
				answers <- pgx.BeginFunc(soon(t), pool, func(two pgx.Tx) error {
					err := advisory.InTx(two).TryAcquire(soon(t), key)
					wantErr(t, "TryAcquire of another", err, advisory.ErrHeld)
					close(held)
					return advisory.InTx(two).Acquire(soon(t), key)
				})
			}()
			happens(t, "the other is refused", held)
			return nil
		})
		wantErr(t, "the holder's transaction", err, nil)
		wantErr(t, "the other's transaction", happens(t, "the other is granted the lock", answers), nil)
	}
	if n := locks(t, d); n != 0 {
		t.Errorf("%d locks are left", n)
	}
	_, err = advisory.List(soon(t), pool)
	wantErr(t, "List", err, nil)
}
