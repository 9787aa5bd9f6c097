package pglock_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// Fair waiters are served in the order in which they came, whichever process they are in; those who give up lose their own
// place and change no other.
func TestFairServesProcessesInTheOrderInWhichTheyCame(t *testing.T) {
	t.Parallel()
	const processes = 8
	d := pgtest.DB(t)
	held := take(t, client(t, d), "a")
	var mu sync.Mutex
	var order, want []int
	answers := make([]<-chan error, processes)
	giveUp := make([]context.CancelFunc, processes)
	for i := range processes {
		c := client(t, d)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		giveUp[i] = cancel
		answers[i] = async(func() error {
			return c.Do(ctx, "a", func(context.Context, *pglock.Lease) error {
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
				return nil
			}, pglock.Fair())
		})
		d.WaitFor(t, `SELECT count(*) = $1 FROM pglock.waits`, i+1)
	}
	for i := range processes {
		if i%3 == 0 { // the first of all, too
			giveUp[i]()
			wantErr(t, "giving up", happens(t, "it gives up", answers[i]), pglock.ErrHeld)
			continue
		}
		want = append(want, i)
	}

	release(t, held)

	for _, i := range want {
		wantErr(t, "Do", happens(t, "its turn", answers[i]), nil)
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(order, want) {
		t.Errorf("served in the order %v, want %v", order, want)
	}
	d.WaitFor(t, `SELECT count(*) = 0 FROM pglock.waits`)
}

// Processes that want a lock again and again take turns, however many of their goroutines want it.
func TestFairProcessesTakeTurns(t *testing.T) {
	t.Parallel()
	const turns = 150 // so many that a process which is stalled for a moment does not count
	d := pgtest.DB(t)
	ctx, enough := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer enough()
	grants := [3]counter{}
	for i := range grants {
		c := client(t, d)
		for range 1 + 2*i {
			all.Go(func() {
				for ctx.Err() == nil {
					c.Do(ctx, "a", func(context.Context, *pglock.Lease) error { grants[i].add(); return nil }, pglock.Fair()) //nolint:errcheck // it ends with ctx
				}
			})
		}
	}
	eventually(t, "each has its turn", func() bool { return grants[0].get() > 3 && grants[1].get() > 3 && grants[2].get() > 3 })
	before := [3]int{grants[0].get(), grants[1].get(), grants[2].get()}
	eventually(t, "the first has many more", func() bool { return grants[0].get() >= before[0]+turns })
	for i := range grants {
		// By their goroutines it would be 150, 450 and 750. The first has to ask again each time, while others of the rest stand in the line.
		if n := grants[i].get() - before[i]; n < turns/5 || n > 3*turns {
			t.Errorf("process %d had %d turns while the first had %d", i, n, turns)
		}
	}
}

// The first in the line has died, and the lock is released for it: the next one has it within six seconds.
func TestADeadFairWaiterHoldsUpTheOthersForABoundedTime(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	held := take(t, client(t, d), "a")
	d.Exec(t, `INSERT INTO pglock.waits (name, client, wait, since, until, fair)
		VALUES ('a', gen_random_uuid(), 1, clock_timestamp(), clock_timestamp() + interval '1 minute', true)`)
	waiting := acquiring(slow(t), client(t, d), "a", pglock.Fair())
	d.WaitFor(t, `SELECT count(*) = 2 FROM pglock.waits`)
	release(t, held)
	const passedOver = `SELECT EXISTS (SELECT FROM pglock.leases WHERE name = 'a' AND token > $1)`
	d.WaitFor(t, passedOver, int64(held.Token()))
	release(t, granted(t, waiting))
}

// A lock that is free for whoever is first in the line is changing hands: nobody holds it.
func TestWhoeverIsBehindInTheLineForAFreeLockIsNotToldOfAHolder(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	release(t, take(t, client(t, d), "a"))
	d.Exec(t, `INSERT INTO pglock.waits (name, client, wait, since, until, fair, woken)
		VALUES ('a', gen_random_uuid(), 1, clock_timestamp(), clock_timestamp() + interval '1 minute', true, true)`)
	c := client(t, d)
	ctx, cancel := context.WithCancel(t.Context())
	waiting := acquiring(ctx, c, "a", pglock.Fair())
	queued(t, c, "a", 1)
	eventually(t, "it is refused", func() bool { return pglock.Refused(c, "a") })
	cancel()
	err := happens(t, "the end of the wait", waiting).err
	if held, ok := errors.AsType[*pglock.HeldError](err); !ok || held.Remaining != 0 {
		t.Errorf("%v, want it to say that the lock is changing hands", err)
	}
}

// With polling turned off, a fair waiter is woken by every release that makes it the next.
func TestNoWakeUpOfAFairWaiterIsLost(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	clients := [3]*pglock.Client{}
	for i := range clients {
		clients[i] = attentive(t, d, d.URL, pglock.Config{})
	}
	ctx := slow(t)
	var all sync.WaitGroup
	for _, c := range clients {
		all.Go(func() {
			for range pgtest.Rounds(50, 1000) {
				rctx, cancel := context.WithTimeout(ctx, patience)
				err := c.Do(rctx, "a", func(context.Context, *pglock.Lease) error { return nil }, pglock.Fair())
				cancel()
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

func TestFairIsForThoseWhoWait(t *testing.T) {
	t.Parallel()
	_, err := nowhere(t).TryAcquire(t.Context(), "a", pglock.Fair())
	wantErr(t, "TryAcquire", err, pglock.ErrInvalidOption)
}
