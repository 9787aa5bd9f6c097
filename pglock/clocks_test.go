package pglock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// skewed is a client of a process whose wall clock is wrong.
func skewed(t *testing.T, d *pgtest.Database, by time.Duration) *Client {
	t.Helper()
	c, err := Open(d.URL, Config{})
	if err != nil {
		t.Fatal(err)
	}
	c.clock.skew.Store(int64(by))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return c
}

var skews = map[string]time.Duration{"an hour fast": time.Hour, "an hour slow": -time.Hour, "ten years fast": 10 * 8766 * time.Hour}

func TestAWrongClockTakesNoLiveLock(t *testing.T) {
	t.Parallel()
	for what, by := range skews {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			l, err := skewed(t, d, 0).TryAcquire(t.Context(), "a", TTL(30*time.Second))
			if err != nil {
				t.Fatal(err)
			}

			_, err = skewed(t, d, by).TryAcquire(t.Context(), "a")

			var held *HeldError
			if !errors.As(err, &held) || held.Remaining < 20*time.Second || held.Remaining > 30*time.Second {
				t.Errorf("with a clock %s: %v, want held for 30 s", what, err)
			}
			if !l.Valid() {
				t.Errorf("the holder: %v", l.Err())
			}
		})
	}
}

func TestAWrongClockNeitherShortensNorStretchesALease(t *testing.T) {
	t.Parallel()
	for what, by := range skews {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			c := skewed(t, d, by)
			l, err := c.TryAcquire(t.Context(), "a", TTL(30*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Renew(t.Context()); err != nil {
				t.Errorf("Renew: %v", err)
			}
			remaining := pgtest.Query[time.Duration](t, d, `SELECT expires_at - clock_timestamp() FROM pglock.leases`)
			if remaining < 20*time.Second || remaining > 30*time.Second {
				t.Errorf("the database leaves it %v, want about 30 s", remaining)
			}
			if ours := c.clock.left(l.trust); ours > remaining || ours < 20*time.Second {
				t.Errorf("the client trusts it for %v, the database leaves it %v", ours, remaining)
			}
		})
	}
}

func TestALeaseEndsWhenTheMachineSleptThroughIt(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := skewed(t, d, 0)
	l, err := c.TryAcquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}

	c.clock.skew.Store(int64(time.Minute)) // the wall clock went on, the monotonic one stood still

	if l.Valid() {
		t.Error("valid after a sleep longer than the TTL")
	}
	wantLost(t, l, Expired)
	if err := l.Renew(t.Context()); !errors.Is(err, ErrLost) {
		t.Errorf("Renew = %v, want ErrLost", err)
	}
}
