package pglock_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

var impossibleTTLs = []time.Duration{-1, -time.Second, math.MinInt64, 1, time.Millisecond, pglock.MinTTL - 1}

func TestAnImpossibleTTLIsRefusedBeforeAnySQL(t *testing.T) {
	c := nowhere(t)
	for _, ttl := range append(impossibleTTLs, 0) { // as an option, 0 is no default
		_, err := c.TryAcquire(t.Context(), "a", pglock.TTL(ttl))
		wantErr(t, "TryAcquire with TTL "+ttl.String(), err, pglock.ErrInvalidOption)
		_, err = c.Acquire(t.Context(), "a", pglock.TTL(ttl))
		wantErr(t, "Acquire with TTL "+ttl.String(), err, pglock.ErrInvalidOption)
		err = c.Do(t.Context(), "a", func(context.Context, *pglock.Lease) error { return nil }, pglock.TTL(ttl))
		wantErr(t, "Do with TTL "+ttl.String(), err, pglock.ErrInvalidOption)
	}
}

func TestATTLAboveTheCapIsRefusedWithTheCapAndWritesNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	check := func(what string, err error) {
		t.Helper()
		wantErr(t, what, err, pglock.ErrInvalidOption)
		if err == nil || !strings.Contains(err.Error(), "30s") {
			t.Errorf("%s: %v, want the cap in it", what, err)
		}
	}
	try := func(c *pglock.Client, opts ...pglock.Option) error {
		_, err := c.TryAcquire(soon(t), "a", opts...)
		return err
	}
	wait := func(c *pglock.Client, opts ...pglock.Option) error {
		_, err := c.Acquire(soon(t), "a", opts...)
		return err
	}
	for i, ttl := range []time.Duration{30*time.Second + time.Microsecond, math.MaxInt64, time.Hour, 366 * 24 * time.Hour, math.MaxInt64 - 1} {
		if i > 1 && !pgtest.Long() {
			break // the others in the long mode
		}
		trying, waiting, configured := client(t, d), client(t, d), open(t, d.URL, pglock.Config{TTL: ttl})
		for _, known := range []string{"unknown", "known"} { // before the first connection, and after
			check(fmt.Sprintf("TryAcquire for %v, cap %s", ttl, known), try(trying, pglock.TTL(ttl)))
			check(fmt.Sprintf("Acquire for %v, cap %s", ttl, known), wait(waiting, pglock.TTL(ttl)))
			err := try(configured)
			check(fmt.Sprintf("%v by Config, cap %s", ttl, known), err)
			if cure := "RaiseCap"; err != nil && strings.Contains(err.Error(), cure) != (ttl <= 24*time.Hour) {
				t.Errorf("%v, which names %s only where that can help", err, cure)
			}
		}
	}
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pglock.leases`); n != 0 {
		t.Errorf("%d rows were made", n)
	}
}

func TestTheLongestAndTheShortestTTLWork(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := client(t, d)
	take(t, c, "long", pglock.TTL(30*time.Second))
	if got := left(t, d, "long"); got < 20*time.Second || got > 30*time.Second {
		t.Errorf("%v left of 30 s", got)
	}
	// Under load even the answer may be too late for so short a lease, which then is no lease.
	if l, err := c.TryAcquire(soon(t), "short", pglock.TTL(pglock.MinTTL)); err == nil {
		if trusted := time.Until(l.Deadline()); trusted > pglock.MinTTL {
			t.Errorf("trusted for %v", trusted)
		}
	} else {
		wantErr(t, "TryAcquire", err, pglock.ErrLost)
	}
}

func TestSettingsThatCannotKeepALeaseAliveAreRefusedWithBothValues(t *testing.T) {
	for _, c := range []pglock.Config{
		{TTL: 5 * time.Second, RenewEvery: 5 * time.Second},
		{TTL: 5 * time.Second, RenewEvery: 10 * time.Second},
		{TTL: 5 * time.Second, RenewEvery: -1},
		{TTL: 5 * time.Second, RenewEvery: math.MinInt64},
		{TTL: 5 * time.Second, RenewEvery: math.MaxInt64},
		{TTL: 5 * time.Second, RenewEvery: 2500 * time.Millisecond}, // with the margin, two would not fit
	} {
		_, err := pglock.Open("host=/nonexistent", c)
		wantErr(t, "Open", err, pglock.ErrInvalidOption)
		if err == nil || !strings.Contains(err.Error(), c.TTL.String()) || !strings.Contains(err.Error(), c.RenewEvery.String()) {
			t.Errorf("Open with %v every %v: %v, want both in it", c.TTL, c.RenewEvery, err)
		}
	}
	for _, ttl := range impossibleTTLs {
		_, err := pglock.Open("host=/nonexistent", pglock.Config{TTL: ttl})
		wantErr(t, "Open with TTL "+ttl.String(), err, pglock.ErrInvalidOption)
	}
	// The TTL of one lease must fit the client's renewals too.
	c := open(t, "host=/nonexistent", pglock.Config{RenewEvery: 4 * time.Second})
	_, err := c.TryAcquire(t.Context(), "a", pglock.TTL(5*time.Second))
	wantErr(t, "TryAcquire", err, pglock.ErrInvalidOption)
}
