package pglock

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// The timing of a lease, without a database: what it answers is made up, and time is exact.

// A fakeDatabase answers renewals as a test says.
type fakeDatabase func(ctx context.Context, due []*Lease) ([]answer, error)

func renewAll(_ context.Context, due []*Lease) ([]answer, error) {
	answers := make([]answer, len(due))
	for i := range due {
		answers[i] = "renewed"
	}
	return answers, nil
}

func silent(ctx context.Context, _ []*Lease) ([]answer, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// hold makes a client over a made-up database that has just granted it leases of a TTL.
func hold(t *testing.T, db fakeDatabase, ttl time.Duration, n int) (*Client, []*Lease) {
	t.Helper()
	pc, err := pgxpool.ParseConfig("host=/nonexistent")
	if err != nil {
		t.Fatal(err)
	}
	life, endAll := context.WithCancel(context.Background())
	c := &Client{cfg: Config{TTL: ttl}, clock: newClock(), dialer: &dialer{config: pc, life: life}, endAll: endAll}
	c.cfg, err = c.cfg.resolve()
	if err != nil {
		t.Fatal(err)
	}
	c.log = c.cfg.Logger
	c.newLines(pc)
	c.keeper.ask = func(ctx context.Context, due []*Lease) (instant, []answer, error) {
		sent := c.clock.now()
		answers, err := db(ctx, due)
		return sent, answers, err
	}
	c.routines.Go(func() { c.keeper.run(life) })
	t.Cleanup(func() {
		for _, l := range c.keeper.all() {
			l.end(ErrClosed)
		}
		endAll()
		c.routines.Wait()
	})
	leases := make([]*Lease, n)
	for i := range leases {
		leases[i] = grant(t, c)
	}
	return c, leases
}

// grant makes a lease as if the database had granted it in no time.
func grant(t *testing.T, c *Client, opts ...Option) *Lease {
	t.Helper()
	lc, err := c.leaseConfig([]string{"a"}, opts)
	if err != nil {
		t.Fatal(err)
	}
	r := newRequest(lc)
	r.firstSent = c.clock.now()
	l, err := newLease(context.Background(), c, r, reply{status: "granted", token: 1, remaining: lc.ttl, sent: r.firstSent})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func wantLost(t *testing.T, l *Lease, cause LossCause) {
	t.Helper()
	var lost *LostError
	if !errors.As(l.Err(), &lost) || lost.Cause != cause {
		t.Errorf("the lease ended with %v, want a loss by %q", l.Err(), cause)
	}
	if !errors.Is(context.Cause(l.Context()), ErrLost) {
		t.Errorf("cause of the context: %v, want ErrLost", context.Cause(l.Context()))
	}
}

func TestTrustEndsWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		_, leases := hold(t, silent, 9*time.Second, 1)

		<-leases[0].Done()

		if got, want := time.Since(start), 9*time.Second-margin(9*time.Second); got != want {
			t.Errorf("trusted the lease for %v, want exactly %v", got, want)
		}
		wantLost(t, leases[0], Expired)
	})
}

// A lease with a MaxHold is renewed so that it lasts until then, to the moment, and not once more.
func TestMaxHoldEndsALeaseToTheMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var last time.Duration
		start := time.Now()
		c, _ := hold(t, func(ctx context.Context, due []*Lease) ([]answer, error) {
			last = time.Since(start)
			return renewAll(ctx, due)
		}, 9*time.Second, 0)
		l := grant(t, c, MaxHold(20*time.Second))
		time.Sleep(19 * time.Second)
		if err := l.Renew(t.Context()); err == nil || errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "MaxHold") {
			t.Errorf("Renew of what is held for as long as it may be: %v", err)
		}

		<-l.Done()

		if got := time.Since(start); got != 20*time.Second {
			t.Errorf("it was held for %v, want exactly 20 s", got)
		}
		if want := 11*time.Second + margin(9*time.Second); last != want {
			t.Errorf("the last renewal was sent at %v, want %v", last, want)
		}
		wantLost(t, l, HeldTooLong)
	})
}

func TestTrustIsCountedFromTheFirstSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := hold(t, silent, 9*time.Second, 0)
		lc, _ := c.leaseConfig([]string{"a"}, nil)
		r := newRequest(lc)
		r.firstSent = c.clock.now()
		time.Sleep(3 * time.Second) // the first reply was lost; the retry says that all of the TTL is left
		l, err := newLease(context.Background(), c, r, reply{status: "granted", token: 1, remaining: 9 * time.Second, sent: c.clock.now()})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()

		<-l.Done()

		if got, want := time.Since(start), 6*time.Second-margin(9*time.Second); got != want {
			t.Errorf("trusted the lease for %v after the retry, want exactly %v", got, want)
		}
	})
}

func TestTrustNeverExceedsWhatTheReplySaysIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := hold(t, silent, 9*time.Second, 0)
		lc, _ := c.leaseConfig([]string{"a"}, nil)
		r := newRequest(lc)
		r.firstSent = c.clock.now()
		start := time.Now()
		l, err := newLease(context.Background(), c, r, reply{status: "granted", token: 1, remaining: 4 * time.Second, sent: r.firstSent})
		if err != nil {
			t.Fatal(err)
		}

		<-l.Done()

		if got, want := time.Since(start), 4*time.Second-margin(4*time.Second); got != want {
			t.Errorf("trusted the lease for %v, want exactly %v", got, want)
		}
	})
}

func TestARenewalIsCountedFromItsSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		asked := 0
		slowOnce := func(ctx context.Context, due []*Lease) ([]answer, error) {
			if asked++; asked > 1 {
				return silent(ctx, due)
			}
			time.Sleep(2 * time.Second)
			return renewAll(ctx, due)
		}
		_, leases := hold(t, slowOnce, 9*time.Second, 1)

		<-leases[0].Done()

		// sent at 3 s (a third of the TTL), answered at 5 s
		if got, want := time.Since(start), 12*time.Second-margin(9*time.Second); got != want {
			t.Errorf("the lease was trusted until %v, want exactly %v", got, want)
		}
	})
}

func TestOneFailedRenewalIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		c, leases := hold(t, func(ctx context.Context, due []*Lease) ([]answer, error) {
			if tries++; tries <= 2 {
				return nil, io.ErrUnexpectedEOF
			}
			return renewAll(ctx, due)
		}, 10*time.Second, 1)
		l := leases[0]

		time.Sleep(time.Minute)
		synctest.Wait()

		if !l.Valid() || l.Token() != 1 {
			t.Errorf("after two failed renewals and good ones since: %v", l.Err())
		}
		if left := c.clock.left(l.trust); left <= 0 {
			t.Errorf("%v left", left)
		}
	})
}

func TestALapseIsFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		_, leases := hold(t, func(_ context.Context, due []*Lease) ([]answer, error) {
			asked++
			time.Sleep(20 * time.Second) // whatever the keeper's patience
			return renewAll(context.Background(), due)
		}, 9*time.Second, 1)
		l := leases[0]
		<-l.Done()
		synctest.Wait()
		before := asked

		time.Sleep(time.Minute) // the answer says renewed, and comes too late
		synctest.Wait()

		wantLost(t, l, Expired)
		if asked != before {
			t.Errorf("%d renewals were sent after the lapse", asked-before)
		}
	})
}

func TestTheWallClockEndsTrustToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, leases := hold(t, renewAll, 9*time.Second, 2)
		l := leases[0]

		c.clock.skew.Store(int64(time.Minute)) // the machine was suspended: its timers and its monotonic clock stood still

		if l.Valid() {
			t.Error("a lease that is over by the wall clock is valid")
		}
		wantLost(t, l, Expired)
		time.Sleep(wallEvery)
		synctest.Wait()
		select {
		case <-leases[1].Done(): // though nobody asked
		default:
			t.Error("nobody looked at the wall clock")
		}
	})
}

func TestAWallClockSteppedBackStretchesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		c, leases := hold(t, silent, 9*time.Second, 1)
		c.clock.skew.Store(int64(-time.Hour))

		<-leases[0].Done()

		if got, want := time.Since(start), 9*time.Second-margin(9*time.Second); got != want {
			t.Errorf("trusted the lease for %v, want exactly %v", got, want)
		}
	})
}

func TestAllLeasesRenewInOneStatementPerTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sizes []int
		c, _ := hold(t, func(ctx context.Context, due []*Lease) ([]answer, error) {
			sizes = append(sizes, len(due))
			return renewAll(ctx, due)
		}, 9*time.Second, 0)
		for range 1000 {
			grant(t, c)
			time.Sleep(time.Millisecond)
		}

		time.Sleep(30 * time.Second) // ten renewals of each
		synctest.Wait()

		if len(sizes) > 11 {
			t.Fatalf("%d statements in 31 s for leases renewed every 3 s: %v", len(sizes), sizes)
		}
		for _, n := range sizes {
			if n != 1000 {
				t.Errorf("a statement renewed %d of 1000 leases", n)
			}
		}
	})
}

func TestALockedRowIsAskedForAgainAndIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		_, leases := hold(t, func(ctx context.Context, due []*Lease) ([]answer, error) {
			if asked++; asked <= 10 {
				return []answer{"locked"}, nil
			}
			return renewAll(ctx, due)
		}, 9*time.Second, 1)

		time.Sleep(20 * time.Second)

		if !leases[0].Valid() {
			t.Errorf("lost: %v", leases[0].Err())
		}
	})
}

func TestTheDatabaseSaysWhyALeaseIsLost(t *testing.T) {
	for status, cause := range map[answer]LossCause{"expired": Expired, "taken": Taken, "gone": Deleted} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			_, leases := hold(t, func(context.Context, []*Lease) ([]answer, error) { return []answer{status}, nil }, 9*time.Second, 1)
			<-leases[0].Done()
			wantLost(t, leases[0], cause)
			if got := time.Since(start); got != 3*time.Second {
				t.Errorf("told after %v, want at the first renewal", got)
			}
		})
	}
}

func TestNoRenewalLapsesUnlessRenewedByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		c, _ := hold(t, renewAll, 9*time.Second, 0)
		l := grant(t, c, NoRenewal())
		time.Sleep(5 * time.Second)
		if err := l.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}

		<-l.Done()

		if got, want := time.Since(start), 14*time.Second-margin(9*time.Second); got != want {
			t.Errorf("the lease ended after %v, want %v", got, want)
		}
		if err := l.Renew(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("Renew of a lapsed lease = %v, want ErrLost", err)
		}
	})
}

func TestALeaseThatEndedBeforeItWasKeptIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, leases := hold(t, renewAll, 9*time.Second, 1)
		l := leases[0]
		l.end(l.lost(Expired))

		c.keeper.add(l) // as when its timer was faster than the call that acquired it

		if held := c.keeper.all(); len(held) != 0 {
			t.Errorf("the keeper keeps %v", held)
		}
	})
}

func TestALeaseGetsATryWhileAnothersAttemptHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := true
		c, leases := hold(t, func(ctx context.Context, due []*Lease) ([]answer, error) {
			if hangs {
				hangs = false
				return silent(ctx, due) // the connection went silent; the next one works
			}
			return renewAll(ctx, due)
		}, 25*time.Second, 1)
		time.Sleep(8400 * time.Millisecond) // the attempt for the long lease is under way, and may take long
		short := grant(t, c, TTL(time.Second))

		time.Sleep(10 * time.Second)
		synctest.Wait()

		if !short.Valid() || !leases[0].Valid() {
			t.Errorf("short: %v, long: %v", short.Err(), leases[0].Err())
		}
	})
}

// What a waiter was granted, and could not trust, is on its way back: under the same id it would be granted once more, and then end.
func TestWhatIsGivenBackIsNotAskedForAgain(t *testing.T) {
	for what, a := range map[string]reply{
		"granted, too late":   {status: "granted"},
		"over":                {status: "spent"},
		"perhaps yet to come": {status: "marked", disowned: true},
		"unknown":             {err: errGone, disowned: true},
		"held":                {status: "marked"},
		"not sent":            {err: errGone},
	} {
		synctest.Test(t, func(t *testing.T) {
			c, _ := hold(t, silent, 9*time.Second, 0)
			lc, _ := c.leaseConfig([]string{"a"}, nil)
			w := c.queues.enter(lc)
			first := c.queues.ask(w)
			c.queues.told(w, first, a)
			again := c.queues.ask(w).id == first.id
			if want := what == "held" || what == "not sent"; again != want {
				t.Errorf("%s: the same id again: %v, want %v", what, again, want)
			}
		})
	}
}
