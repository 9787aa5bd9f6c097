package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	crashTTL   = 2 * time.Second
	afterKill  = "ms-after-the-kill"
	afterLease = "ms-after-the-lease"
)

// crash kills a holder, in a process of its own, while another waits in this one. The systems take part at the same time: what they
// do then is to wait.
func (b *bench) crash(ctx context.Context) (*answer, error) {
	t := newTable()
	var who []contender
	for _, s := range systems() {
		if isLock(s) && s != oursFair {
			who = append(who, b.contender(s, s.Name)...)
		}
	}
	h := &hands{}
	defer h.close()
	var mu sync.Mutex
	for round := range b.crashes {
		var wg sync.WaitGroup
		for _, c := range who {
			c.TTL = crashTTL
			if t.failed[c.Label] != nil {
				continue
			}
			held := 700*time.Millisecond + time.Duration(b.random.Int64N(int64(700*time.Millisecond))) // a whole time between renewals
			wg.Go(func() {
				limited, cancel := context.WithTimeoutCause(ctx, roundLimit, fmt.Errorf("not done after %v", roundLimit))
				defer cancel()
				kill, lease, err := b.killOne(limited, c, &local{hands: h}, fmt.Sprintf("crash/%s/%d", c.Label, round), held)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.failed[c.Label] = err
					return
				}
				t.add(c.Label, afterKill, kill)
				if c.System == ours.Name {
					t.add(c.Label, afterLease, lease)
				}
			})
		}
		wg.Wait()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		b.say("  round %d of %d", round+1, b.crashes)
	}
	for _, label := range sortedKeys(t.failed) {
		b.say("  %s failed: %s", label, oneLine(t.failed[label]))
	}
	t.sort(who)
	worst := median(nil)
	if v := t.of(ours.Name, afterLease); len(v) > 0 {
		worst = slices.Max(v)
	}
	return &answer{
		table: t, units: []string{afterKill, afterLease},
		goals: []goal{atMost("at most 50 ms after what is left of the lease, each time", 50, worst, 0)},
		notes: []string{"What is left of the lease is asked of the database's clock just after the kill. Locks of a session are free as soon as the " +
			"connection ends. redislock and redsync do not renew by themselves, so what is left of their leases is less."},
	}, nil
}

func (b *bench) killOne(ctx context.Context, c contender, waiter caller, name string, held time.Duration) (afterKill, afterLease float64, err error) {
	holder, err := startProcess()
	if err != nil {
		return 0, 0, err
	}
	defer holder.stop()
	if err := waiter.Open(ctx, c); err != nil {
		return 0, 0, err
	}
	if _, err := holder.Acquire(ctx, c, name); err != nil {
		return 0, 0, err
	}
	var granted instant
	got := make(chan error, 1)
	go func() {
		var err error
		granted, err = waiter.Acquire(ctx, c, name)
		got <- err
	}()
	sleep(ctx, held) //nolint:errcheck // the waiter looks at ctx
	killed, ends := now(), instant(0)
	holder.stop()
	if c.System == ours.Name {
		if ends, err = endOfLease(ctx, c.URL, name); err != nil {
			return 0, 0, err
		}
	}
	if err := <-got; err != nil {
		return 0, 0, err
	}
	_, err = waiter.Release(ctx, c, name)
	ms := func(past instant) float64 { return float64(granted.since(past)) / float64(time.Millisecond) }
	return ms(killed), ms(ends), err
}

// endOfLease is when a lease ends, by our clock.
func endOfLease(ctx context.Context, url, name string) (instant, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx)
	const left = `SELECT (extract(epoch FROM expires_at - clock_timestamp()) * 1000000)::bigint FROM pglock.leases WHERE name = $1`
	var µs int64
	if err := conn.QueryRow(ctx, left, name).Scan(&µs); err != nil { // the first prepares
		return 0, err
	}
	asked := now()
	err = conn.QueryRow(ctx, left, name).Scan(&µs)
	answered := now()
	return asked.add(answered.since(asked)/2 + time.Duration(µs)*time.Microsecond), err
}
