package advisory_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock/advisory"
)

// Case C1: two clients, ten goroutines, a pool of five that is busy with other things. Never two inside, and nothing left.
func TestOneAtATime(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	pc := poolConfig(t, d.URL)
	pc.MaxConns = 5
	one, pool := ofPool(t, pc)
	two := client(t, d)
	key := advisory.Name("a")

	busy, stop := context.WithCancel(context.Background())
	var others, workers sync.WaitGroup
	for range 3 {
		others.Go(func() {
			for busy.Err() == nil {
				if _, err := pool.Exec(busy, `SELECT count(*) FROM pg_class`); err != nil && busy.Err() == nil {
					t.Errorf("another query: %v", err)
				}
			}
		})
	}
	var inside, done atomic.Int32
	for i := range 10 {
		c := []*advisory.Client{one, two}[i%2]
		workers.Go(func() {
			for range pgtest.Rounds(2, 100) {
				err := c.Do(long(t), key, func(ctx context.Context) error {
					if inside.Add(1) != 1 {
						t.Error("two are inside")
					}
					defer inside.Add(-1)
					_, err := pool.Exec(ctx, `SELECT 1`)
					return err
				})
				if err != nil {
					t.Errorf("Do: %v", err)
				}
				done.Add(1)
			}
		})
	}
	workers.Wait()
	stop()
	others.Wait()
	d.WaitFor(t, noLocks)
}

// The pool of the caller gives no connection away: one that is used up is no hindrance.
func TestAPoolOfOneThatIsInUse(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	pc := poolConfig(t, d.URL)
	pc.MaxConns = 1
	c, pool := ofPool(t, pc)
	conn, err := pool.Acquire(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	l := take(t, c, advisory.Name("a"))
	wantErr(t, "a query over the pool", conn.Ping(soon(t)), nil)
	conn.Release()
	wantErr(t, "Release", l.Release(soon(t)), nil)
}

// Case C11: one key is held once in a client, in whatever mode, and one release frees it.
func TestAClientTakesNoKeyTwice(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	c := client(t, d)
	key := advisory.Name("a")
	for _, first := range [][]advisory.Option{nil, {advisory.Shared()}} {
		l := take(t, c, key, first...)
		for _, second := range [][]advisory.Option{nil, {advisory.Shared()}} {
			if held := refused(t, c, key, second...); !held.Own {
				t.Errorf("the second TryAcquire in one client: %v", held)
			}
		}
		// Whoever waits here waits in turn, without a connection.
		waiting := acquiring(soon(t), c, key, first...)
		other := take(t, c, advisory.Name("b"))
		release(t, other)
		if n := locks(t, d); n != 1 {
			t.Errorf("%d locks are held, want 1", n)
		}
		release(t, l)
		release(t, granted(t, waiting))
		d.WaitFor(t, noLocks)
	}
}

func TestSharedLocksExcludeExclusiveOnes(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	one, two, three := client(t, d), client(t, d), client(t, d)
	for _, key := range []advisory.Key{advisory.Name("a"), advisory.Int32s(1, -1)} {
		first := take(t, one, key, advisory.Shared())
		second := take(t, two, key, advisory.Shared())
		if held := refused(t, three, key); len(held.Holders) != 2 || !held.Holders[0].Shared {
			t.Errorf("the holders are %v", held.Holders)
		}
		release(t, first)
		refused(t, three, key)
		release(t, second)
		only := take(t, three, key)
		refused(t, one, key, advisory.Shared())
		release(t, only)
	}
}

// The ctx of the acquisition bounds the asking; its values are the lock's.
func TestTheLockOutlivesTheContextThatAskedForIt(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	c := open(t, d.URL, advisory.Config{CheckEvery: 100 * time.Millisecond})
	type name struct{}
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), name{}, "value"))
	l, err := c.TryAcquire(ctx, advisory.Name("a"))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if l.Context().Err() != nil || l.Context().Value(name{}) != "value" {
		t.Errorf("the lock's context has ended (%v) or has no values", l.Context().Err())
	}
	pgtest.Query[int](t, d, `SELECT 1`)
	release(t, l)
	wantErr(t, "the cause", context.Cause(l.Context()), advisory.ErrReleased)
}
