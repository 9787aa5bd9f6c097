package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// latencies is how long each of many operations took.
type latencies struct {
	mu  sync.Mutex
	all []time.Duration
}

// time runs an operation and notes how long it took.
func (l *latencies) time(op func()) {
	began := time.Now()
	op()
	took := time.Since(began)
	l.mu.Lock()
	l.all = append(l.all, took)
	l.mu.Unlock()
}

func (l *latencies) report(b *testing.B) {
	if len(l.all) == 0 {
		return
	}
	slices.Sort(l.all)
	for name, share := range map[string]int{"p50-µs": 50, "p99-µs": 99} {
		b.ReportMetric(float64(l.all[(len(l.all)-1)*share/100].Microseconds()), name)
	}
}

// benchClient waits for the flush of every grant where the server flushes at all: the throw-away one does not.
func benchClient(b *testing.B, d *pgtest.Database) *pglock.Client {
	b.Helper()
	return open(b, with(b, d.URL, "synchronous_commit", "on"), pglock.Config{})
}

// pair acquires and releases.
func pair(b *testing.B, acquire func(context.Context, string, ...pglock.Option) (*pglock.Lease, error), name string) {
	l, err := acquire(context.Background(), name)
	if err == nil {
		err = l.Release(context.Background())
	}
	if err != nil {
		b.Error(err)
	}
}

// BenchmarkLock is one acquisition and its release.
//
//	go test -run '^$' -bench 'Lock|LosingTry|RenewalTick' ./pglock
func BenchmarkLock(b *testing.B) {
	b.Run("uncontended", func(b *testing.B) {
		c := benchClient(b, pgtest.DB(b))
		pair(b, c.TryAcquire, "a")
		var took latencies
		for b.Loop() {
			took.time(func() { pair(b, c.TryAcquire, "a") })
		}
		took.report(b)
	})
	for _, clients := range []int{16, 64} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) { // callers of one client, each with its own name
			c := benchClient(b, pgtest.DB(b))
			together(b, clients, func(caller int) { pair(b, c.TryAcquire, fmt.Sprint("lock ", caller)) })
		})
	}
	b.Run("clients=16/one-name", func(b *testing.B) { // processes, so to speak: each client has connections of its own
		d := pgtest.DB(b)
		clients := make([]*pglock.Client, 16)
		for i := range clients {
			clients[i] = benchClient(b, d)
		}
		together(b, len(clients), func(caller int) { pair(b, clients[caller].Acquire, "a") })
	})
}

// together runs an operation from so many goroutines. Each has done it once before the clock starts.
func together(b *testing.B, callers int, op func(caller int)) {
	b.Helper()
	var warm sync.WaitGroup
	for caller := range callers {
		warm.Go(func() { op(caller) })
	}
	warm.Wait()
	var took latencies
	var next, left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ResetTimer()
	for range callers {
		wg.Go(func() {
			caller := int(next.Add(1) - 1)
			for left.Add(-1) >= 0 {
				took.time(func() { op(caller) })
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	took.report(b)
}

// BenchmarkLosingTry is a try of a lock that another holds.
func BenchmarkLosingTry(b *testing.B) {
	d := pgtest.DB(b)
	take(b, open(b, d.URL, pglock.Config{TTL: 30 * time.Second}), "a")
	c := benchClient(b, d)
	refused(b, c, "a")
	var took latencies
	for b.Loop() {
		took.time(func() {
			if _, err := c.TryAcquire(b.Context(), "a"); !errors.Is(err, pglock.ErrHeld) {
				b.Fatal(err)
			}
		})
	}
	took.report(b)
}
