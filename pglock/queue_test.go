package pglock_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// eventually waits for what only this process knows.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for enough := time.Now().Add(2 * patience); !is(); <-tick.C {
		if time.Now().After(enough) {
			t.Fatalf("never: %s", what)
		}
	}
}

// queued waits until so many calls of Acquire are under way.
func queued(t testing.TB, c *pglock.Client, name string, n int) {
	t.Helper()
	eventually(t, "they queue up", func() bool { return pglock.Queued(c, name) == n })
}

// Goroutines of one process are granted a lock in the order in which they asked. Those who give up, wherever they stand in the
// queue, change nothing for the others, and are told who holds the lock.
func TestWaitersOfOneProcessAreServedInOrderAndGivingUpDisturbsNobody(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	another := open(t, d.URL, pglock.Config{Owner: "the holder"})
	const unheard = "another process, and no notification arrives"
	for where, holder := range map[string]*pglock.Client{"this process": nil, "another process": another, unheard: another} {
		t.Run("held by "+where, func(t *testing.T) {
			t.Parallel()
			const waiters = 30
			cfg := pglock.Config{Owner: "the holder"}
			if where == unheard {
				cfg.ListenURL = "postgres://nobody@127.0.0.1:1/none"
			}
			c := open(t, d.URL, cfg)
			if holder == nil {
				holder = c
			}
			held := take(t, holder, where)
			var mu sync.Mutex
			var order []int
			answers := make([]<-chan error, waiters)
			giveUp := make([]context.CancelFunc, waiters)
			for i := range waiters {
				ctx, cancel := context.WithTimeout(t.Context(), 6*patience)
				defer cancel()
				giveUp[i] = cancel
				answers[i] = async(func() error {
					return c.Do(ctx, where, func(context.Context, *pglock.Lease) error {
						mu.Lock()
						defer mu.Unlock()
						order = append(order, i)
						return nil
					})
				})
				queued(t, c, where, i+1)
			}
			if holder != c {
				eventually(t, "the first is refused", func() bool { return pglock.Refused(c, where) })
			}
			var want []int
			for i := range waiters { // the first of them as well, and the last
				if i%3 != 0 && i != waiters-1 {
					want = append(want, i)
					continue
				}
				giveUp[i]()
				err := happens(t, "it gives up", answers[i])
				wantErr(t, "giving up", err, context.Canceled)
				var who *pglock.HeldError
				if !errors.As(err, &who) || who.Owner != "the holder" || who.Token != held.Token() || who.Remaining <= 0 || who.Since.IsZero() {
					t.Errorf("giving up = %v, want it to say who holds", err)
				}
			}
			queued(t, c, where, len(want))

			release(t, held)

			for _, i := range want {
				wantErr(t, "Do", happens(t, "its turn", answers[i]), nil)
			}
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(order, want) {
				t.Errorf("served in the order %v, want %v", order, want)
			}
		})
	}
}

// A release hands the lock to the next goroutine of the process in one round trip: a new grant, with a token of its own.
func TestAReleaseHandsTheLockOverInOneRoundTrip(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	p := pgtest.NewProxy(t, d)
	c := handsOver(t, p)
	last := take(t, c, "a")
	for range 5 {
		waiting := acquiring(soon(t), c, "a")
		queued(t, c, "a", 1)
		id := pgtest.Query[string](t, d, `SELECT acquisition::text FROM pglock.leases WHERE name = 'a'`)
		before := p.Counts()

		release(t, last)
		next := granted(t, waiting)

		if n := p.Counts().Since(before).RoundTrips(); n != 1 {
			t.Errorf("%d round trips for a hand-over", n)
		}
		if next.Token() <= last.Token() {
			t.Errorf("token %d after %d", next.Token(), last.Token())
		}
		if now := pgtest.Query[string](t, d, `SELECT acquisition::text FROM pglock.leases WHERE name = 'a'`); now == id {
			t.Error("the new grant has the acquisition of the old one")
		}
		wantErr(t, "the former lease", last.Err(), pglock.ErrReleased)
		stillHeld(t, d, next)
		last = next
	}
	release(t, last)
}

// handsOver is a client that has handed a lock over before: its connections are made, and its statements prepared.
func handsOver(t *testing.T, p *pgtest.Proxy) *pglock.Client {
	t.Helper()
	c := warm(t, p)
	l := take(t, c, "warm")
	waiting := acquiring(soon(t), c, "warm")
	queued(t, c, "warm", 1)
	release(t, l)
	release(t, granted(t, waiting))
	return c
}

// A lease that was lost is not handed over: another has the lock, and the next goroutine waits for that one.
func TestALostLeaseIsNotHandedOver(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c, other := client(t, d), client(t, d)
	lost := take(t, c, "a", pglock.NoRenewal())
	waiting := acquiring(soon(t), c, "a")
	queued(t, c, "a", 1)
	d.Age(t, "a", time.Minute)
	theirs := take(t, other, "a")

	wantErr(t, "Release of what another has", lost.Release(soon(t)), pglock.ErrLost)

	stillHeld(t, d, theirs)
	select {
	case got := <-waiting:
		t.Fatalf("granted beside %v: %v, %v", theirs, got.lease, got.err)
	default:
	}
	release(t, theirs)
	if l := granted(t, waiting); l.Token() <= theirs.Token() {
		t.Errorf("token %d after %d", l.Token(), theirs.Token())
	}
}

// Whoever waits behind a lease of its own process asks for itself as soon as that is lost.
func TestTheLossOfALeaseLetsTheNextOneOfTheProcessAsk(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := open(t, d.URL, pglock.Config{RenewEvery: 100 * time.Millisecond})
	lost := take(t, c, "a")
	waiting := acquiring(soon(t), c, "a")
	queued(t, c, "a", 1)

	d.Exec(t, `DELETE FROM pglock.leases WHERE name = 'a'`)

	l := granted(t, waiting)
	wantLoss(t, lost, pglock.Deleted)
	stillHeld(t, d, l)
}

func TestNothingIsHandedOverBeforeHoldAtLeastIsOver(t *testing.T) {
	t.Parallel()
	const hold = 500 * time.Millisecond
	d := pgtest.DB(t)
	c := client(t, d)
	first := take(t, c, "a", pglock.HoldAtLeast(hold))
	const since = `SELECT granted_at FROM pglock.leases WHERE name = 'a'`
	began := pgtest.Query[time.Time](t, d, since)
	waiting := acquiring(soon(t), c, "a")
	queued(t, c, "a", 1)

	release(t, first)
	granted(t, waiting)

	if after := pgtest.Query[time.Time](t, d, since).Sub(began); after < hold {
		t.Errorf("handed over after %v, want %v at least", after, hold)
	}
}

// The reply to a hand-over is lost: it is settled by its acquisition like any other, so there is one new grant and no more.
func TestAHandOverWhoseReplyIsLostIsSettled(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	p := pgtest.NewProxy(t, d)
	c := handsOver(t, p)
	first := take(t, c, "a")
	waiting := acquiring(soon(t), c, "a")
	queued(t, c, "a", 1)
	before := drawn(t, d)
	lost := p.LoseNextReply("a")

	release(t, first)

	l := granted(t, waiting)
	happens(t, "the reply is lost", lost)
	stillHeld(t, d, l)
	if n := drawn(t, d) - before; n != 1 {
		t.Errorf("%d tokens were drawn for one hand-over", n)
	}
}

// Whoever is handed a lock at the moment at which it gives up leaves no lease behind: the next one in the queue has it.
func TestAHandOverToOneWhoGivesUpGoesOnToTheNext(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	p := pgtest.NewProxy(t, d)
	c := handsOver(t, p)
	first := take(t, c, "a")
	ctx, giveUp := context.WithCancel(t.Context())
	second := acquiring(ctx, c, "a")
	queued(t, c, "a", 1)
	third := acquiring(soon(t), c, "a")
	queued(t, c, "a", 2)
	p.Stall(pgtest.ToClient)
	released := async(func() error { return first.Release(soon(t)) })
	d.WaitFor(t, `SELECT token > $1 FROM pglock.leases WHERE name = 'a'`, int64(first.Token())) // handed over, there

	giveUp()
	wantErr(t, "the second", happens(t, "it gives up", second).err, context.Canceled)
	p.Resume()

	wantErr(t, "Release", happens(t, "it is answered", released), nil)
	l := granted(t, third)
	release(t, l)
	if holds(t, d, "a") {
		t.Error("a lease was left behind")
	}
}

// While another process waits, a process hands a lock on to its own for a while and no longer.
func TestAHandOverWithinAProcessStarvesNoOtherProcess(t *testing.T) {
	t.Parallel()
	const goroutines, turns = 16, 5
	d := pgtest.DB(t)
	busy, other := client(t, d), client(t, d)
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	var grants counter
	for range goroutines {
		all.Go(func() {
			for ctx.Err() == nil {
				err := busy.Do(ctx, "a", func(context.Context, *pglock.Lease) error { grants.add(); return nil })
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			}
		})
	}
	eventually(t, "the busy process hands over", func() bool { return grants.get() > goroutines })
	for range turns {
		l, err := other.Acquire(soon(t), "a")
		if err != nil {
			t.Fatalf("the other process, after %d grants of the busy one: %v", grants.get(), err)
		}
		before := grants.get()
		release(t, l)
		eventually(t, "the busy process goes on", func() bool { return grants.get() > before })
	}
}

// The same where commits take long: the row is locked nearly always, whenever the other process asks.
func TestSlowCommitsDoNotHideAnotherProcessThatWaits(t *testing.T) {
	t.Parallel()
	const goroutines, turns = 16, 8
	d := pgtest.DB(t)
	d.Exec(t, `CREATE FUNCTION slow_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.02); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER slow_disk AFTER UPDATE ON pglock.leases DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW WHEN (new.expires_at > 'epoch') EXECUTE FUNCTION slow_disk()`)
	busy, other := client(t, d), attentive(t, d, d.URL, pglock.Config{})
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	var grants counter
	for range goroutines {
		all.Go(func() {
			for ctx.Err() == nil {
				busy.Do(ctx, "a", func(context.Context, *pglock.Lease) error { grants.add(); return nil }) //nolint:errcheck // it ends with ctx
			}
		})
	}
	eventually(t, "the busy process hands over", func() bool { return grants.get() > goroutines })
	waited := 0
	for range turns {
		before := grants.get()
		l := granted(t, acquiring(slow(t), other, "a"))
		waited += grants.get() - before
		release(t, l)
		before = grants.get()
		eventually(t, "the busy process goes on", func() bool { return grants.get() > before+2 })
	}
	if waited > 40*turns { // 16 each, and what it takes to ask; thousands, if it is found out by chance
		t.Errorf("%d grants to the busy process in %d waits of the other", waited, turns)
	}
}

type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) add() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
}

func (c *counter) get() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// What waiting does not cure is told to everybody who waits, and not to one after the other.
func TestWhatWaitingDoesNotCureIsToldToTheWholeQueue(t *testing.T) {
	t.Parallel()
	const waiters = 20
	d := pgtest.DB(t)
	p := pgtest.NewProxy(t, d)
	c := warm(t, p)
	p.Stall(pgtest.ToServer)
	answers := make([]<-chan acquired, waiters)
	for i := range answers {
		answers[i] = acquiring(soon(t), c, "a")
	}
	queued(t, c, "a", waiters)
	d.Exec(t, `DROP SCHEMA pglock CASCADE`)
	p.Resume()
	for _, a := range answers {
		wantErr(t, "Acquire", happens(t, "it returns", a).err, pglock.ErrNotMigrated)
	}
}

func TestCloseEndsAllWaitersAndTakesTheirMarksAway(t *testing.T) {
	t.Parallel()
	const waiters = 100
	d := pgtest.DB(t)
	take(t, client(t, d), "a")
	c := unclosed(t, d.URL, pglock.Config{})
	answers := make([]<-chan acquired, waiters)
	for i := range answers {
		answers[i] = acquiring(t.Context(), c, "a")
	}
	queued(t, c, "a", waiters)
	d.WaitFor(t, `SELECT EXISTS (SELECT FROM pglock.waits)`)

	wantErr(t, "Close", c.Close(soon(t)), nil)

	for _, a := range answers {
		wantErr(t, "Acquire", happens(t, "it returns", a).err, pglock.ErrClosed)
	}
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pglock.waits`); n != 0 {
		t.Errorf("%d marks are left", n)
	}
}
