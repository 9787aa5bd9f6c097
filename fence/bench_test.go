package fence_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/migrations"
	"github.com/fencedlock/fencedlock/pglock"
)

const (
	benchRepeats = 15
	benchSlice   = 300 * time.Millisecond
)

// BenchmarkFences measures each fence beside an unfenced update in a transaction, for 1 and for 16 writers of one grant, each
// with a row of its own, on a server that flushes. The repeats are interleaved, and the unfenced one runs twice: the ratio of
// the two shows the noise. What ends in -first sends BEGIN, the fence, its update and COMMIT in one round trip (fence.First), which the
// unfenced one can do, too. Each figure is a median, each ratio the median of the ratios within a repeat.
//
//	go test -run '^$' -bench Fences -benchtime 1x ./fence
func BenchmarkFences(b *testing.B) {
	ctx := b.Context()
	pool := durable(b)
	client, err := pglock.New(pool, pglock.Config{TTL: 10 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the server goes with it
	lease, err := client.TryAcquire(ctx, "billing")
	if err != nil {
		b.Fatal(err)
	}
	g := lease.Grant()

	update := func(tx pgx.Tx, id int) error {
		_, err := tx.Exec(ctx, `UPDATE plain SET n = n + 1 WHERE id = $1`, id)
		return err
	}
	first := func(table string, id int) *pgx.Batch {
		var b pgx.Batch
		b.Queue(`UPDATE `+table+` SET n = n + 1 WHERE id = $1`, id)
		return &b
	}
	unfenced := way{"unfenced", func(id int) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return update(tx, id) })
	}}
	rows := fence.Table{Name: "fenced", Key: []string{"id"}}
	ways := []way{
		unfenced,
		{"again", unfenced.write},
		{"row", func(id int) error { return rows.Update(ctx, pool, g, fence.Row{"id": id, "n": 1}, fence.Again()) }},
		{"row-in-tx", func(id int) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				return rows.Update(ctx, tx, g, fence.Row{"id": id, "n": 1}, fence.Again())
			})
		}},
		{"held", func(id int) error {
			return fence.HeldTx(ctx, pool, g, func(_ context.Context, tx pgx.Tx) error { return update(tx, id) })
		}},
		{"trigger", func(id int) error {
			return fence.StatedTx(ctx, pool, g, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `UPDATE protected SET n = n + 1 WHERE id = $1`, id)
				return err
			})
		}},
		{"resource", func(id int) error {
			return fence.Tx(ctx, pool, g, "ledger", func(tx pgx.Tx) error { return update(tx, id) })
		}},
		{"held-first", func(id int) error { return fence.HeldTx(ctx, pool, g, nil, fence.First(first("plain", id))) }},
		{"trigger-first", func(id int) error { return fence.StatedTx(ctx, pool, g, nil, fence.First(first("protected", id))) }},
		{"resource-first", func(id int) error { return fence.Tx(ctx, pool, g, "ledger", nil, fence.First(first("plain", id))) }},
		{"unfenced-first", func(id int) error {
			var b pgx.Batch
			b.Queue("begin")
			b.QueuedQueries = append(b.QueuedQueries, first("plain", id).QueuedQueries...)
			b.Queue("commit")
			return pool.SendBatch(ctx, &b).Close()
		}},
	}
	for _, writers := range []int{1, 16} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				besideUnfenced(b, writers, ways)
				b.StartTimer()
			}
		})
	}
}

// A way is one way to write a row.
type way struct {
	name  string
	write func(id int) error
}

// durable is a pool on a server of its own, which flushes, with the rows 1 to 16.
func durable(b *testing.B) *pgxpool.Pool {
	b.Helper()
	ctx := b.Context()
	server, err := pgtemp.Start(ctx, pgtemp.Options{Durable: true, Fresh: true})
	if err != nil {
		b.Skip(err)
	}
	b.Cleanup(func() { server.Stop() }) //nolint:errcheck // it is thrown away
	cfg, err := pgxpool.ParseConfig(server.URL("postgres"))
	if err != nil {
		b.Fatal(err)
	}
	cfg.MaxConns = 16
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	if err := migrations.Up(ctx, pool, migrations.SingleNode()); err != nil {
		b.Fatal(err)
	}
	if _, err := pool.Exec(ctx, `CREATE TABLE plain (id int PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 50);
		CREATE TABLE fenced (id int PRIMARY KEY, n bigint NOT NULL, fencing_token bigint NOT NULL DEFAULT 0) WITH (fillfactor = 50);
		CREATE TABLE protected (LIKE plain INCLUDING ALL);
		INSERT INTO protected SELECT g, 0 FROM generate_series(1, 16) g; SELECT pglock.protect('protected');
		INSERT INTO plain SELECT g, 0 FROM generate_series(1, 16) g; INSERT INTO fenced SELECT g, 0 FROM generate_series(1, 16) g`); err != nil {
		b.Fatal(err)
	}
	return pool
}

// besideUnfenced compares all ways with the first.
func besideUnfenced(b *testing.B, writers int, ways []way) {
	perSecond, ratios, took := map[string][]float64{}, map[string][]float64{}, map[string][]time.Duration{}
	for repeat := range 1 + benchRepeats {
		for i := range ways {
			w := ways[(i+repeat)%len(ways)]
			n, times := run(b, writers, w.write)
			if repeat > 0 { // the first one warms up
				perSecond[w.name], took[w.name] = append(perSecond[w.name], n), append(took[w.name], times...)
			}
		}
	}
	var report strings.Builder // two to a line, since go test shows ten lines at most
	for at, w := range ways {
		for i, n := range perSecond[w.name] {
			ratios[w.name] = append(ratios[w.name], n/perSecond[ways[0].name][i])
		}
		times := took[w.name]
		slices.Sort(times)
		fmt.Fprintf(&report, "%-14s %6.0f tx/s  ratio %.2f (%.2f-%.2f)  p50 %4d us  p99 %5d us%s", w.name, median(perSecond[w.name]),
			median(ratios[w.name]), slices.Min(ratios[w.name]), slices.Max(ratios[w.name]),
			times[len(times)/2].Microseconds(), times[len(times)*99/100].Microseconds(), []string{"   ", "\n"}[at%2])
		b.ReportMetric(median(ratios[w.name]), w.name+"-ratio")
	}
	b.Logf("%d writers\n%s", writers, report.String())
}

// run writes from so many goroutines, each its own row, for a slice of time.
func run(b *testing.B, writers int, write func(id int) error) (perSecond float64, took []time.Duration) {
	b.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	start := time.Now()
	for i := range writers {
		wg.Go(func() {
			var mine []time.Duration
			for begun := start; begun.Sub(start) < benchSlice; {
				if err := write(1 + i); err != nil {
					b.Error(err)
					return
				}
				now := time.Now()
				mine, begun = append(mine, now.Sub(begun)), now
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, mine...)
		})
	}
	wg.Wait()
	return float64(len(took)) / time.Since(start).Seconds(), took
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}
