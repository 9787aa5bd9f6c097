package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
)

const opsPerSecond = "ops/s"

func (b *bench) oneCaller(ctx context.Context) (*answer, error) {
	a, noise, err := b.throughput(ctx, 1)
	if err != nil {
		return nil, err
	}
	over := func(s *System) float64 { return median(a.ratios(ours.Name, s.Name, opsPerSecond)) }
	a.goals = []goal{
		atLeast("≥ 0.95 of two bare upserts", 0.95, over(upserts), noise),
		atLeast("≥ 1.8 times etcd", 1.8, over(etcd), noise),
		atLeast("≥ 1.8 times ZooKeeper", 1.8, over(zookeeper), noise),
		{"allocations of ours: counted", fmt.Sprintf("%s allocs, %s B", figure(median(a.of(ours.Name, "allocs/op"))),
			figure(median(a.of(ours.Name, "B/op")))), "no goal"},
	}
	return a, nil
}

func (b *bench) manyCallers(ctx context.Context) (*answer, error) {
	a, noise, err := b.throughput(ctx, maxCallers)
	if err != nil {
		return nil, err
	}
	over := func(s *System) float64 { return median(a.ratios(ours.Name, s.Name, opsPerSecond)) }
	a.goals = []goal{
		atLeast("≥ 3 times two bare upserts", 3, over(upserts), noise),
		atLeast("≥ redislock on a Redis with fsync", 1, over(redislockDurable), noise),
	}
	return a, nil
}

// throughput measures acquire and release from so many goroutines, each with a name of its own. The control is the floor.
func (b *bench) throughput(ctx context.Context, callers int) (*answer, float64, error) {
	h := &hands{}
	defer h.close()
	t := newTable()
	who := b.contenders(upserts, func(*System) bool { return true })
	for _, c := range who { // connections, and rows or nodes for every name
		b.attempt(ctx, t, c, func(ctx context.Context) error { return new(slice).run(ctx, h, c, callers, 0) })
	}
	err := b.interleave(ctx, t, b.rounds, who, func(ctx context.Context, c contender, _ int) error {
		var s slice
		if err := s.run(ctx, h, c, callers, b.slice); err != nil {
			return err
		}
		µs := in(time.Microsecond, s.took)
		t.add(c.Label, opsPerSecond, float64(len(s.took))/s.lasted.Seconds())
		t.add(c.Label, "p50-µs", median(µs))
		t.add(c.Label, "p99-µs", quantile(µs, 0.99))
		t.add(c.Label, "allocs/op", float64(s.allocs)/float64(len(s.took)))
		t.add(c.Label, "B/op", float64(s.bytes)/float64(len(s.took)))
		return nil
	})
	for label := range t.values {
		t.values[label]["÷ upserts"] = t.ratios(label, upserts.Name, opsPerSecond)
	}
	a := &answer{table: t, units: []string{"÷ upserts", opsPerSecond, "p50-µs", "p99-µs", "allocs/op"}}
	a.notes = []string{t.control(upserts, opsPerSecond), "Allocations are those of the whole process of the client meanwhile, renewals included."}
	return a, t.noise(upserts.Name, again(upserts), opsPerSecond), err
}

// A slice is one turn of one system.
type slice struct {
	took          []time.Duration
	lasted        time.Duration
	allocs, bytes uint64
}

// run lets every goroutine acquire and release once, and go on until the time is over.
func (s *slice) run(ctx context.Context, h *hands, c contender, callers int, d time.Duration) error {
	client, err := h.client(ctx, c)
	if err != nil {
		return err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var wg sync.WaitGroup
	took, failed := make([][]time.Duration, callers), make([]error, callers)
	began := now()
	for g := range callers {
		wg.Go(func() {
			name := fmt.Sprint("caller/", g)
			for at := began; failed[g] == nil && (at == began || at.since(began) < d); {
				release, err := client.Acquire(ctx, name)
				if err == nil {
					err = release(ctx)
				}
				failed[g] = err
				done := now()
				took[g] = append(took[g], done.since(at))
				at = done
			}
		})
	}
	wg.Wait()
	s.lasted = now().since(began)
	runtime.ReadMemStats(&after)
	s.allocs, s.bytes = after.Mallocs-before.Mallocs, after.TotalAlloc-before.TotalAlloc
	for _, t := range took {
		s.took = append(s.took, t...)
	}
	return errors.Join(failed...)
}
