package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	grantsPerSecond = "grants/s"
	fairness        = "min÷max"        // of the callers' grants in one round
	fairnessInAll   = "min÷max-in-all" // of those in all rounds: chance evens out, and starving does not
	section         = time.Millisecond
)

func (b *bench) oneProcess(ctx context.Context) (*answer, error) {
	h := &hands{}
	defer h.close()
	callers := make([]caller, b.callers)
	for i := range callers {
		callers[i] = &local{hands: h}
	}
	a, noise, err := b.contend(ctx, b.inside, callers)
	if err != nil {
		return nil, err
	}
	best := a.best(isLock)
	a.goals = []goal{
		atLeast("≥ 0.95 of the best of all others ("+best+")", 0.95, median(a.ratios(ours.Name, best, grantsPerSecond)), noise),
		atLeast("fairness: min ÷ max of the callers' grants ≥ 0.9", 0.9, median(a.of(ours.Name, fairnessInAll)), 0),
	}
	return a, nil
}

func (b *bench) manyProcesses(ctx context.Context) (*answer, error) {
	callers, stop, err := startProcesses(b.callers)
	if err != nil {
		return nil, err
	}
	defer stop()
	a, noise, err := b.contend(ctx, b.across, callers)
	if err != nil {
		return nil, err
	}
	best := a.best(func(s *System) bool { return s.Kind == lease })
	a.goals = []goal{
		atLeast("ahead of every lease system (the best: "+best+"): > 1", 1, median(a.ratios(ours.Name, best, grantsPerSecond)), noise),
		atMost("statements per grant ≤ 4", 4, b.statementsPerGrant(ctx, a, callers), 0),
		atLeast("nobody starves: min ÷ max ≥ 0.5", 0.5, median(a.of(ours.Name, fairnessInAll)), 0),
		atLeast("with Fair(): min ÷ max ≥ 0.9", 0.9, median(a.of(oursFair.Name, fairnessInAll)), 0),
	}
	return a, nil
}

// best is who of the others had the most grants.
func (t *table) best(of func(*System) bool) (label string) {
	for _, s := range systems() {
		if s != ours && s != oursFair && of(s) && len(t.of(s.Name, grantsPerSecond)) > 0 &&
			(label == "" || median(t.of(s.Name, grantsPerSecond)) > median(t.of(label, grantsPerSecond))) {
			label = s.Name
		}
	}
	return label
}

func (b *bench) contend(ctx context.Context, much contention, callers []caller) (*answer, float64, error) {
	t := newTable()
	who := b.contenders(ours, isLock)
	for _, c := range who {
		b.attempt(ctx, t, c, func(ctx context.Context) error {
			return each(callers, func(_ int, p caller) error { return p.Open(ctx, c) })
		})
	}
	inAll := map[string][]float64{}
	err := b.interleave(ctx, t, much.rounds, who, func(ctx context.Context, c contender, round int) error {
		got, err := b.compete(ctx, c, much, callers, fmt.Sprintf("contended/%s/%d", c.Label, round))
		if err != nil {
			return err
		}
		var counts, waits []float64
		for i, g := range got {
			if inAll[c.Label] == nil {
				inAll[c.Label] = make([]float64, len(callers))
			}
			inAll[c.Label][i] += float64(g.Counted)
			counts = append(counts, float64(g.Counted))
			waits = append(waits, in(time.Millisecond, g.Waits)...)
		}
		t.add(c.Label, grantsPerSecond, sum(counts)/much.lasts.Seconds())
		t.add(c.Label, fairness, leastOverMost(counts))
		if len(waits) > 0 {
			t.add(c.Label, "p50-wait-ms", median(waits))
			t.add(c.Label, "p99-wait-ms", quantile(waits, 0.99))
		}
		return nil
	})
	for label, counts := range inAll {
		t.add(label, fairnessInAll, leastOverMost(counts))
	}
	a := &answer{table: t, units: []string{grantsPerSecond, fairness, fairnessInAll, "p50-wait-ms", "p99-wait-ms"}}
	a.notes = []string{t.control(ours, grantsPerSecond)}
	return a, t.noise(ours.Name, again(ours), grantsPerSecond), err
}

// compete lets all callers want one lock for a while. What they get while they warm up is not counted, and neither is what those
// get that still wait at the end.
func (b *bench) compete(ctx context.Context, c contender, much contention, callers []caller, name string) ([]turns, error) {
	from := now().add(much.warm)
	job := contest{Name: name, From: from, Until: from.add(much.lasts), Section: section}
	got := make([]turns, len(callers))
	err := each(callers, func(i int, p caller) (err error) {
		got[i], err = p.Contend(ctx, c, job)
		return err
	})
	return got, err
}

// statementsPerGrant is counted in a turn of its own, since to count takes time. It notes the same of the fair one.
func (b *bench) statementsPerGrant(ctx context.Context, a *answer, callers []caller) float64 {
	for _, s := range []*System{ours, oursFair} {
		c := b.contender(s, s.Name)[0]
		b.attempt(ctx, a.table, c, func(ctx context.Context) error {
			var got []turns
			n, err := b.postgres().countStatements(ctx, func() (err error) {
				got, err = b.compete(ctx, c, b.across, callers, "counted/"+s.Name)
				return err
			})
			if errors.Is(err, errUncounted) {
				a.notes = append(a.notes, "Statements were not counted: "+err.Error())
				return nil
			}
			grants := 0.0
			for _, g := range got {
				grants += float64(g.All)
			}
			if err == nil {
				a.add(s.Name, "statements/grant", n/grants)
			}
			return err
		})
	}
	a.units = append(a.units, "statements/grant")
	a.notes = append(a.notes, "Statements: calls in pg_stat_statements, in a turn of its own.")
	return median(a.of(ours.Name, "statements/grant"))
}

func leastOverMost(v []float64) float64 { return slices.Min(v) / max(1, slices.Max(v)) }

func sum(v []float64) (s float64) {
	for _, x := range v {
		s += x
	}
	return s
}

// each does something with all callers at once.
func each(callers []caller, f func(int, caller) error) error {
	var wg sync.WaitGroup
	failed := make([]error, len(callers))
	for i, p := range callers {
		wg.Go(func() { failed[i] = f(i, p) })
	}
	wg.Wait()
	for _, err := range failed { // one tells as much as sixteen
		if err != nil {
			return err
		}
	}
	return nil
}

func startProcesses(n int) ([]caller, func(), error) {
	var all []*process
	stop := func() {
		for _, p := range all {
			p.stop()
		}
	}
	var callers []caller
	for range n {
		p, err := startProcess()
		if err != nil {
			stop()
			return nil, nil, err
		}
		all, callers = append(all, p), append(callers, p)
	}
	return callers, stop, nil
}
