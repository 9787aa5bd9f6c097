package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// unclosed is a client that the test closes.
func unclosed(t *testing.T, url string, cfg pglock.Config) *pglock.Client {
	t.Helper()
	c, err := pglock.Open(url, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCloseEndsAndReleasesEveryLease(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	p := pgtest.NewProxy(t, d)
	c := unclosed(t, with(t, p.URL(), "application_name", "closed"), pglock.Config{})
	leases := make([]*pglock.Lease, 100)
	for i := range leases {
		leases[i] = take(t, c, fmt.Sprint("lock ", i))
	}
	before := p.Counts()

	wantErr(t, "Close", c.Close(soon(t)), nil)

	if n := p.Counts().Since(before).RoundTrips(); n > 2 { // one to release all; the preparation of that statement
		t.Errorf("%d round trips to release %d leases", n, len(leases))
	}
	for _, l := range leases {
		wantErr(t, "the end of a lease", l.Err(), pglock.ErrClosed)
		wantErr(t, "its cause", context.Cause(l.Context()), pglock.ErrClosed)
	}
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pglock.leases WHERE expires_at > 'epoch'`); n != 0 {
		t.Errorf("%d leases were not released", n)
	}
	d.WaitFor(t, `SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'closed')`)
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`); n != 0 {
		t.Errorf("%d advisory locks are left", n)
	}
}

func TestAClosedClientAnswersErrClosed(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := unclosed(t, d.URL, pglock.Config{})
	l := take(t, c, "a")
	for range 2 { // closing again is harmless
		wantErr(t, "Close", c.Close(soon(t)), nil)
	}
	_, err := c.TryAcquire(t.Context(), "a")
	wantErr(t, "TryAcquire", err, pglock.ErrClosed)
	if got := err.Error(); got != `pglock: lock "a": client closed` {
		t.Errorf("TryAcquire = %s", got)
	}
	_, err = c.Acquire(t.Context(), "a")
	wantErr(t, "Acquire", err, pglock.ErrClosed)
	_, err = c.Inspect(t.Context(), "a")
	wantErr(t, "Inspect", err, pglock.ErrClosed)
	_, err = c.List(t.Context())
	wantErr(t, "List", err, pglock.ErrClosed)
	_, err = c.Prune(t.Context(), time.Hour)
	wantErr(t, "Prune", err, pglock.ErrClosed)
	_, err = c.PruneFences(t.Context(), time.Hour)
	wantErr(t, "PruneFences", err, pglock.ErrClosed)
	wantErr(t, "Renew", l.Renew(t.Context()), pglock.ErrClosed)
	wantErr(t, "Release", l.Release(t.Context()), pglock.ErrClosed)
}

func TestAClientThatWasNeverUsedClosesAtOnce(t *testing.T) {
	wantErr(t, "Close", unclosed(t, "postgres://nobody@127.0.0.1:1/none", pglock.Config{}).Close(soon(t)), nil)
}

// Whatever runs beside Close ends, with ErrClosed where it did not come first.
func TestCloseMayComeAtAnyMoment(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	for round := range 10 {
		c := unclosed(t, with(t, d.URL, "application_name", "closed"), pglock.Config{})
		holder := take(t, c, "held")
		var all sync.WaitGroup
		check := func(what string, err error) {
			var held *pglock.HeldError
			if err != nil && !errors.Is(err, pglock.ErrClosed) && !errors.As(err, &held) && !errors.Is(err, pglock.ErrReleased) {
				t.Errorf("%s beside Close = %v", what, err)
			}
		}
		for i := range 4 {
			all.Go(func() { _, err := c.Acquire(t.Context(), "held"); check("Acquire", err) })
			all.Go(func() { _, err := c.TryAcquire(t.Context(), fmt.Sprint(i)); check("TryAcquire", err) })
			all.Go(func() { check("Renew", holder.Renew(t.Context())) })
			all.Go(func() {
				check("Do", c.Do(t.Context(), fmt.Sprint("do ", i), func(ctx context.Context, _ *pglock.Lease) error { <-ctx.Done(); return nil }))
			})
		}
		all.Go(func() { _, err := c.Inspect(t.Context(), "held"); check("Inspect", err) })
		if round%2 == 0 {
			all.Go(func() { check("Release", holder.Release(t.Context())) })
		}
		for range 3 {
			all.Go(func() { wantErr(t, "Close", c.Close(soon(t)), nil) })
		}
		ended := async(func() bool { all.Wait(); return true })
		happens(t, "everything ends", ended)
		if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pglock.leases WHERE expires_at > 'epoch'`); n != 0 {
			t.Fatalf("round %d: %d leases are left", round, n)
		}
	}
	d.WaitFor(t, `SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'closed')`)
}

// Close is bounded by its ctx, whatever the server does, and says which leases it leaves to their TTL.
func TestCloseIsBoundedWhenTheServerIsSilent(t *testing.T) {
	t.Parallel()
	for what, prepare := range map[string]func(t *testing.T, p *pgtest.Proxy, c *pglock.Client){
		"silent":            func(_ *testing.T, p *pgtest.Proxy, _ *pglock.Client) { p.Stall(pgtest.Both) },
		"gone":              func(_ *testing.T, p *pgtest.Proxy, _ *pglock.Client) { p.Refuse(true); p.Cut() },
		"gone, then silent": func(_ *testing.T, p *pgtest.Proxy, _ *pglock.Client) { p.Stall(pgtest.Both); p.Cut() },
		"silent in an asking": func(t *testing.T, p *pgtest.Proxy, c *pglock.Client) {
			p.Stall(pgtest.Both)
			acquiring(t.Context(), c, "another")
		},
		"silent after a look": func(t *testing.T, p *pgtest.Proxy, c *pglock.Client) {
			_, err := c.Inspect(soon(t), "a")
			wantErr(t, "Inspect", err, nil)
			p.Stall(pgtest.Both)
		},
		"silent in a look that was given up": func(t *testing.T, p *pgtest.Proxy, c *pglock.Client) {
			_, err := c.Inspect(soon(t), "a")
			wantErr(t, "Inspect", err, nil)
			p.Stall(pgtest.Both)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, err = c.Inspect(ctx, "a")
			wantErr(t, "Inspect of a silent server", err, context.DeadlineExceeded)
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			p := pgtest.NewProxy(t, d)
			c := unclosed(t, p.URL(), pglock.Config{})
			l := take(t, c, "a")
			prepare(t, p, c)
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			err := happens(t, "Close returns", async(func() error { return c.Close(ctx) }))
			wantErr(t, "Close", err, pglock.ErrNotReleased)
			wantErr(t, "Close", err, context.DeadlineExceeded)
			wantErr(t, "the lease's end", l.Err(), pglock.ErrClosed)
			again := c.Close(t.Context())
			if again == nil || again.Error() != err.Error() {
				t.Errorf("Close again = %v, want the same", again)
			}
		})
	}
}

// Behind a pooler nobody knows whether a grant that failed is still to come. Close does not wait to see.
func TestCloseWaitsForNothingThatMayNeverCome(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	holder := take(t, client(t, d), "a")
	p := pgtest.NewProxy(t, &pgtest.Database{URL: pooler(t, d)})
	c := unclosed(t, p.URL(), pglock.Config{})
	refused(t, c, "a")
	p.LoseNextReply("a")
	refused(t, c, "a") // asked for twice, and the first sending may yet be granted
	wantErr(t, "Close", happens(t, "Close returns", async(func() error { return c.Close(context.Background()) })), nil)
	release(t, holder)
}

func TestASecondCloseAnswersTheSameWhateverItsContext(t *testing.T) {
	t.Parallel()
	c := unclosed(t, pgtest.DB(t).URL, pglock.Config{})
	wantErr(t, "Close", c.Close(soon(t)), nil)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 { // it is no matter of luck
		if err := c.Close(ended); err != nil {
			t.Fatalf("Close again = %v, want the same as before", err)
		}
	}
}

// A release whose caller has gone goes on until Close. If Close cannot confirm it either, it must not be silent about it.
func TestCloseNamesAReleaseThatIsStillOnItsWay(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	p := pgtest.NewProxy(t, d)
	c := unclosed(t, p.URL(), pglock.Config{})
	l := take(t, c, "on its way")
	p.Stall(pgtest.Both)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	wantErr(t, "Release", l.Release(over), pglock.ErrNotReleased)

	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := happens(t, "Close returns", async(func() error { return c.Close(ctx) }))
	wantErr(t, "Close", err, pglock.ErrNotReleased)
	if err != nil && !strings.Contains(err.Error(), `"on its way"`) {
		t.Errorf("Close = %v, which does not name the lock", err)
	}
}

func TestCloseWithAnEndedContextReturnsAtOnce(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := unclosed(t, d.URL, pglock.Config{})
	l := take(t, c, "a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := happens(t, "Close returns", async(func() error { return c.Close(ctx) })); err != nil { // the answer may have been there
		wantErr(t, "Close", err, pglock.ErrNotReleased)
	}
	wantErr(t, "the lease's end", l.Err(), pglock.ErrClosed)
}
