package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	commitLabel = "one bare upsert"
	handOffMS   = "p50-ms"
)

func (b *bench) handOffAcross(ctx context.Context) (*answer, error) {
	callers, stop, err := startProcesses(2)
	if err != nil {
		return nil, err
	}
	defer stop()
	a, noise, err := b.handOff(ctx, callers[0], callers[1], isLock)
	if err != nil {
		return nil, err
	}
	a.goals = []goal{
		atMost("p50 ≤ 3 commits", 3, a.p(0.5, ours)/a.commit(), noise),
		atMost("p50 ≤ that of etcd", 1, a.p(0.5, ours)/a.p(0.5, etcd), noise),
		atMost("p99 ≤ 10 commits", 10, a.p(0.99, ours)/a.commit(), noise),
	}
	return a, nil
}

func (b *bench) handOffInside(ctx context.Context) (*answer, error) {
	h := &hands{}
	defer h.close()
	prompt := func(s *System) bool { return isLock(s) && s.Poll < 250*time.Millisecond } // the others are as slow as across processes
	a, noise, err := b.handOff(ctx, &local{hands: h}, &local{hands: h}, prompt)
	if err != nil {
		return nil, err
	}
	a.goals = []goal{atMost("p50 ≤ 1.5 commits", 1.5, a.p(0.5, ours)/a.commit(), noise)}
	return a, nil
}

// p is a quantile over all hand-offs of all rounds.
func (t *table) p(q float64, s *System) float64 { return quantile(t.of(s.Name, "each-ms"), q) }

func (t *table) commit() float64 { return median(t.of(commitLabel, "each-ms")) }

// handOff measures how long it takes from the beginning of a release to the grant of the one that waits. A commit is measured
// beside it in the same rhythm, since what is rarely used is slower on every machine.
func (b *bench) handOff(ctx context.Context, x, y caller, want func(*System) bool) (*answer, float64, error) {
	t := newTable()
	commit := contender{Label: commitLabel, System: upserts.Name}
	who := append(b.contenders(ours, want), commit)
	pool, err := openPool(ctx, b.servers[onPostgres].url)
	if err != nil {
		return nil, 0, err
	}
	defer pool.Close()
	rounds := max(1, b.handOffs/20)
	for _, c := range who[:len(who)-1] {
		b.attempt(ctx, t, c, func(ctx context.Context) error {
			warm := 4 // until a client that waits often has begun to listen
			if b.fastWaking || system(c.System).Poll > 0 {
				warm = 0
			}
			_, err := b.pass(ctx, c, x, y, warm, func() time.Duration { return 400 * time.Millisecond })
			return err
		})
	}
	err = b.interleave(ctx, t, rounds, who, func(ctx context.Context, c contender, _ int) error {
		n := b.handOffs / rounds
		pause := b.pause(system(c.System))
		if c.System == ours.Name || c.Label == commitLabel { // a goal is about their tail
			n *= 3
		}
		var took []time.Duration
		if c.Label == commitLabel {
			for range n {
				sleep(ctx, pause()) //nolint:errcheck // the upsert looks at ctx
				began := now()
				if _, err := (upsertsClient{pool}).Acquire(ctx, "a commit"); err != nil {
					return err
				}
				took = append(took, now().since(began))
			}
		} else {
			if system(c.System).Poll >= time.Second { // the time of this run is better spent elsewhere
				n = max(1, n/10)
			}
			var err error
			if took, err = b.pass(ctx, c, x, y, n, pause); err != nil {
				return err
			}
		}
		ms := in(time.Millisecond, took)
		t.add(c.Label, "each-ms", ms...)
		t.add(c.Label, handOffMS, median(ms))
		return nil
	})
	for _, label := range slices.Clone(t.labels) {
		all := t.of(label, "each-ms")
		t.add(label, "p99-ms", quantile(all, 0.99))
		t.add(label, "max-ms", slices.Max(all))
		t.add(label, "hand-offs", float64(len(all)))
	}
	a := &answer{table: t, units: []string{handOffMS, "p99-ms", "max-ms", "hand-offs"}}
	a.notes = []string{t.control(ours, handOffMS), "p50: the median of the rounds' medians, and their range. The instants are of CLOCK_MONOTONIC, which the processes share."}
	return a, t.noise(ours.Name, again(ours), handOffMS), err
}

// pause is how long a lock is held before it is handed off: long enough for the other to wait by then, and then anywhere in the
// time between two of its questions, which would else be met at the same point each time.
func (b *bench) pause(s *System) func() time.Duration {
	settle := cmp.Or(s.Settle, usualSettle)
	return func() time.Duration {
		return settle + time.Duration(b.random.Int64N(int64(max(s.Poll, 50*time.Millisecond))))
	}
}

// pass hands a lock to and fro.
func (b *bench) pass(ctx context.Context, c contender, holder, waiter caller, times int, pause func() time.Duration) ([]time.Duration, error) {
	for _, p := range []caller{holder, waiter} {
		if err := p.Open(ctx, c); err != nil {
			return nil, err
		}
	}
	name := fmt.Sprint("handed off/", c.Label)
	if _, err := holder.Acquire(ctx, c, name); err != nil {
		return nil, err
	}
	var took []time.Duration
	for range times {
		type grant struct {
			at  instant
			err error
		}
		grants := make(chan grant, 1)
		go func() {
			at, err := waiter.Acquire(ctx, c, name)
			grants <- grant{at, err}
		}()
		if err := sleep(ctx, pause()); err != nil {
			return nil, err
		}
		released, err := holder.Release(ctx, c, name)
		if err != nil {
			return nil, err
		}
		g := <-grants
		if g.err != nil {
			return nil, g.err
		}
		took = append(took, g.at.since(released))
		holder, waiter = waiter, holder
	}
	_, err := holder.Release(ctx, c, name)
	return took, err
}
