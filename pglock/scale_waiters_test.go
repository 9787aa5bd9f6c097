package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// A thousand goroutines of one process want one lock. Some are granted it, one at a time; the others give up when told, and
// meanwhile another lease of the client is renewed.
func TestAThousandWaitersInOneProcessTakeTurns(t *testing.T) {
	const waiters, turns = 1000, 50
	d := pgtest.DB(t)
	p := pgtest.NewProxy(t, d)
	c := open(t, p.URL(), pglock.Config{})
	beside := take(t, c, "beside", pglock.TTL(5*time.Second))
	first := take(t, c, "a")
	ctx, enough := context.WithCancelCause(t.Context())
	defer enough(nil)
	errEnough := errors.New("enough")
	var inside, done atomic.Int64
	answers := make(chan error, waiters)
	for range waiters {
		go func() {
			answers <- c.Do(ctx, "a", func(context.Context, *pglock.Lease) error {
				if inside.Add(1) != 1 {
					t.Error("two at a time")
				}
				if done.Add(1) == turns {
					enough(errEnough)
				}
				inside.Add(-1)
				return nil
			})
		}()
	}
	atFirst := left(t, d, "beside")
	d.WaitFor(t, `SELECT expires_at - clock_timestamp() < $2::interval FROM pglock.leases WHERE name = $1`, "beside", atFirst-200*time.Millisecond)
	release(t, first)
	var granted, gaveUp int
	for range waiters {
		switch err := happens(t, "every waiter comes back", answers); {
		case err == nil:
			granted++
		case errors.Is(err, errEnough):
			gaveUp++
		default:
			t.Errorf("a waiter got %v", err)
		}
	}
	if granted < turns || granted+gaveUp != waiters {
		t.Errorf("%d waiters were granted the lock and %d gave up, want %d at least and %d in all", granted, gaveUp, turns, waiters)
	}
	if n := p.Conns(); n > 2 {
		t.Errorf("%d connections, want 2 at most", n)
	}
	if err := beside.Err(); err != nil {
		t.Errorf("the lease beside them: %v", err)
	}
	if held, err := c.TryAcquire(soon(t), "a"); err != nil {
		t.Errorf("afterwards: %v", err)
	} else {
		release(t, held)
	}
}

func TestAPoolWithoutAFreeConnectionCostsNoLease(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	for _, size := range []int{1, 4} {
		t.Run(fmt.Sprintf("%d connections", size), func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			pool, err := pgxpool.New(t.Context(), with(t, d.URL, "pool_max_conns", fmt.Sprint(size)))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			for range size {
				busy, err := pool.Acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(busy.Release)
			}
			c, err := pglock.New(pool, pglock.Config{TTL: ttl})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { wantErr(t, "Close", c.Close(context.Background()), nil) })

			l := take(t, c, "a")
			began := pgtest.Query[time.Time](t, d, `SELECT clock_timestamp()`)
			for _, later := range []time.Duration{5 * time.Second, 10 * time.Second} { // in two steps, since no wait of a test is longer than ten seconds
				d.WaitFor(t, `SELECT expires_at > $2 FROM pglock.leases WHERE name = $1`, "a", began.Add(later+ttl)) // renewed so much later
			}

			wantErr(t, "the lease", l.Err(), nil)
			release(t, take(t, c, "b"))
			release(t, l)
			if n := pool.Stat().AcquiredConns(); n != int32(size) {
				t.Errorf("%d connections of the pool are in use, want the %d of the test", n, size)
			}
		})
	}
}
