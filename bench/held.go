package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencedlock/fencedlock/pglock"
	"github.com/jackc/pgx/v5/pgxpool"
)

const oneEach = "one statement per lease"

// held measures what leases cost that are only held: ours, and as many rows of which each is updated by a statement of its own,
// as often, which is what a library does that has a heartbeat for each lease.
func (b *bench) held(ctx context.Context) (*answer, error) {
	t := newTable()
	const cpu, rate, bytes = "server-CPU-%", "statements/s", "table-bytes"
	for _, m := range []struct {
		label string
		table string
		hold  func(ctx context.Context, ready func() error) error
	}{
		{ours.Name, "pglock.leases", b.holdOurs},
		{oneEach, "renewed", b.holdOneEach},
	} {
		err := m.hold(ctx, func() error {
			b.say("  %s: %d leases are held for %v", m.label, b.leases, b.holding)
			size := func() (float64, error) {
				return query[float64](ctx, b.postgres(), `SELECT pg_relation_size($1::regclass)::float8`, m.table)
			}
			sizeBefore, err := size()
			if err != nil {
				return err
			}
			var used time.Duration
			n, err := b.postgres().countStatements(ctx, func() error {
				before, err := b.postgres().cpu()
				sleep(ctx, b.holding) //nolint:errcheck // the next query looks at ctx
				after, errAfter := b.postgres().cpu()
				used = after - before
				return errors.Join(err, errAfter)
			})
			if err != nil {
				return err
			}
			sizeAfter, err := size()
			t.add(m.label, cpu, 100*used.Seconds()/b.holding.Seconds())
			t.add(m.label, rate, n/b.holding.Seconds())
			t.add(m.label, bytes+"-before", sizeBefore)
			t.add(m.label, bytes+"-after", sizeAfter)
			return err
		})
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			t.failed[m.label] = err
			b.say("  %s failed: %s", m.label, oneLine(err))
		}
	}
	growth := median(t.of(ours.Name, bytes+"-after")) / median(t.of(ours.Name, bytes+"-before"))
	return &answer{
		table: t, units: []string{cpu, rate, bytes + "-before", bytes + "-after"},
		goals: []goal{
			atLeast("server CPU: 25 times less than one statement per lease", 25, median(t.ratios(oneEach, ours.Name, cpu)), 0),
			atMost("≤ 3 statements per second", 3, median(t.of(ours.Name, rate)), 0),
			atMost("size of the table constant: after ÷ before = 1", 1, growth, 0),
		},
		notes: []string{fmt.Sprintf("%d leases for %v; processor time of all processes of the server, from /proc; statements from pg_stat_statements, "+
			"which is on for both.", b.leases, b.holding)},
	}, nil
}

// holdOurs holds the leases while ready runs. It is called when all have been renewed three times: by then the table has all the room that it needs.
func (b *bench) holdOurs(ctx context.Context, ready func() error) error {
	c, err := pglock.Open(b.servers[onPostgres].url, pglock.Config{TTL: b.heldTTL})
	if err != nil {
		return err
	}
	defer oursClient{client: c}.Close() //nolint:errcheck // the server goes with it
	leases := make([]*pglock.Lease, b.leases)
	if err := inParallel(len(leases), func(i int) (err error) {
		leases[i], err = c.TryAcquire(ctx, fmt.Sprint("held/", i))
		return err
	}); err != nil {
		return err
	}
	if !b.fastWaking {
		sleep(ctx, b.heldTTL) //nolint:errcheck // what follows looks at ctx
	}
	if err := ready(); err != nil {
		return err
	}
	for _, l := range leases {
		if err := l.Err(); err != nil {
			return err
		}
	}
	return nil
}

// holdOneEach updates a row for each lease every third of the TTL, evenly spread over it, over a pool of connections.
func (b *bench) holdOneEach(ctx context.Context, ready func() error) error {
	pool, err := openPool(ctx, b.servers[onPostgres].url)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, fmt.Sprintf(`CREATE TABLE renewed (name text COLLATE "C" PRIMARY KEY, expires_at timestamptz) WITH (fillfactor = 50);
		INSERT INTO renewed SELECT 'held/' || i FROM generate_series(0, %d) i`, b.leases-1)); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	for worker := range maxCallers {
		wg.Go(func() {
			err := b.renewEach(ctx, pool, worker)
			if ctx.Err() == nil {
				failed.Store(&err)
			}
		})
	}
	err = ready()
	cancel()
	wg.Wait()
	if f := failed.Load(); f != nil {
		err = errors.Join(err, *f)
	}
	return err
}

// renewEach is one of the workers. It goes on until ctx ends.
func (b *bench) renewEach(ctx context.Context, pool *pgxpool.Pool, worker int) error {
	every := b.heldTTL / 3
	for round, began := 0, now(); ; round++ {
		for i := worker; i < b.leases; i += maxCallers {
			due := began.add(time.Duration(round)*every + every*time.Duration(i)/time.Duration(b.leases))
			if err := due.wait(ctx); err != nil {
				return err
			}
			if _, err := pool.Exec(ctx, `UPDATE renewed SET expires_at = clock_timestamp() + interval '15 s' WHERE name = $1`, fmt.Sprint("held/", i)); err != nil {
				return err
			}
		}
	}
}

// inParallel does something n times, a thousand at once.
func inParallel(n int, f func(int) error) error {
	callers := make([]caller, min(n, 1000))
	return each(callers, func(g int, _ caller) error {
		for i := g; i < n; i += len(callers) {
			if err := f(i); err != nil {
				return err
			}
		}
		return nil
	})
}
