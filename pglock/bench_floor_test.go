package pglock_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/migrations"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	floorRepeats = 15
	floorSlice   = 400 * time.Millisecond
)

// BenchmarkAcquireReleaseBesideUpserts measures a lock's acquire and release beside the floor for one caller, two bare durable
// upserts through a pool, on a server that flushes. The repeats of ours, of the floor and of the floor once more (the control
// pair: identical code, so its ratio shows the noise) are interleaved; each figure is a median, each ratio the median of the
// ratios within a repeat.
//
//	go test -run '^$' -bench BesideUpserts -benchtime 1x ./pglock
func BenchmarkAcquireReleaseBesideUpserts(b *testing.B) {
	ctx := context.Background()
	server, err := pgtemp.Start(ctx, pgtemp.Options{Durable: true, Fresh: true})
	if err != nil {
		b.Skip(err)
	}
	defer server.Stop() //nolint:errcheck // it is thrown away
	pc, err := pgxpool.ParseConfig(server.URL("postgres"))
	if err != nil {
		b.Fatal(err)
	}
	pc.MaxConns = 64
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	if err := migrations.Up(ctx, pool, migrations.SingleNode()); err != nil {
		b.Fatal(err)
	}
	if _, err := pool.Exec(ctx, `CREATE TABLE floor (name text PRIMARY KEY, n bigint NOT NULL)`); err != nil {
		b.Fatal(err)
	}
	client, err := pglock.New(pool, pglock.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close(ctx) //nolint:errcheck // the server goes with it

	ours := func(name string) error {
		l, err := client.TryAcquire(ctx, name)
		if err != nil {
			return err
		}
		return l.Release(ctx)
	}
	upserts := func(name string) error {
		for range 2 {
			if _, err := pool.Exec(ctx, `INSERT INTO floor VALUES ($1, 1) ON CONFLICT (name) DO UPDATE SET n = floor.n + 1`, name); err != nil {
				return err
			}
		}
		return nil
	}
	for _, goroutines := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("goroutines=%d", goroutines), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				compare(b, goroutines, ours, upserts, "upserts/s")
				b.StartTimer()
			}
		})
	}
}

func compare(b *testing.B, goroutines int, ours, floor func(string) error, unit string) {
	var oursPerS, floorPerS, ratios, control []float64
	for _, warm := range []func(string) error{ours, floor} {
		perSecond(b, goroutines, warm)
	}
	for range floorRepeats {
		o, f, again := perSecond(b, goroutines, ours), perSecond(b, goroutines, floor), perSecond(b, goroutines, floor)
		oursPerS, floorPerS = append(oursPerS, o), append(floorPerS, f)
		ratios, control = append(ratios, o/f), append(control, again/f)
	}
	b.ReportMetric(median(oursPerS), "ours/s")
	b.ReportMetric(median(floorPerS), unit)
	b.ReportMetric(median(ratios), "ratio")
	b.ReportMetric(median(control), "control-ratio")
	b.ReportMetric(slices.Min(control), "control-min")
	b.ReportMetric(slices.Max(control), "control-max")
}

// perSecond runs op from so many goroutines, each on a name of its own, for a slice of time.
func perSecond(b *testing.B, goroutines int, op func(name string) error) float64 {
	b.Helper()
	var done atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for g := range goroutines {
		wg.Go(func() {
			name := fmt.Sprintf("floor/%d", g)
			for time.Since(start) < floorSlice {
				if err := op(name); err != nil {
					b.Error(err)
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(done.Load()) / time.Since(start).Seconds()
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}
