package failover

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/history"
	"github.com/fencedlock/fencedlock/pglock"
)

// A load is many clients that want few locks with short TTLs, at one address, and what they were told. A fifth of the holders
// stall: they keep what they trust and neither renew nor release it.
type load struct {
	t      *testing.T
	record *history.Recorder
	told   chan struct{} // by every grant
	stop   func()        // and join

	longest time.Duration // of the TTLs
}

const (
	loadCap     = 2 * time.Second // and the longest TTL
	loadClients = 12
)

var loadNames = []string{"one", "two", "three"}

func startLoad(t *testing.T, url, schema string, longest time.Duration) *load {
	t.Helper()
	l := &load{t: t, record: history.NewRecorder("clients"), told: make(chan struct{}, 1), longest: longest}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for i := range loadClients {
		name := fmt.Sprintf("client%d", i)
		c, err := pglock.Open(url, pglock.Config{Schema: schema, Owner: name, TTL: time.Second})
		do(t, "Open", err)
		all.Go(func() {
			for ctx.Err() == nil {
				l.turn(ctx, c, name)
			}
			end, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			if err := c.Close(end); err != nil && !errors.Is(err, pglock.ErrNotReleased) {
				t.Errorf("Close: %v", err)
			}
		})
	}
	l.stop = sync.OnceFunc(func() { cancel(); all.Wait() })
	t.Cleanup(l.stop)
	return l
}

// turn takes a lock and holds it for some time, in one of three ways.
func (l *load) turn(ctx context.Context, c *pglock.Client, client string) {
	asking, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	stalls := rand.IntN(5) == 0
	opts := []pglock.Option{pglock.TTL(time.Second + rand.N(l.longest-time.Second))}
	if stalls {
		opts = append(opts, pglock.NoRenewal())
	}
	lease, err := c.Acquire(asking, loadNames[rand.IntN(len(loadNames))], opts...)
	if err != nil {
		l.excuse(err)
		return
	}
	holding := told(l.record, client, lease)
	select {
	case l.told <- struct{}{}:
	default:
	}
	hold := rand.N(60 * time.Millisecond)
	switch {
	case stalls:
		hold = time.Hour
	case rand.IntN(8) == 0:
		hold = rand.N(2 * time.Second) // and renews
	}
	if l.watch(ctx, lease, holding, hold) {
		return
	}
	holding.Released()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := lease.Release(end); err != nil && !errors.Is(err, pglock.ErrLost) && !errors.Is(err, pglock.ErrNotReleased) {
		l.t.Errorf("Release: %v", err)
	}
}

// watch holds a lease for so long, and reports whether it was lost. This process may not get to run when a lease lapses, and
// acts on no lease then, so what counts is the deadline.
func (l *load) watch(ctx context.Context, lease *pglock.Lease, holding *history.Holding, hold time.Duration) (lost bool) {
	over := time.After(hold)
	deadline := lease.Deadline()
	for {
		select {
		case <-lease.Done():
			holding.Lapsed(deadline, lease.Err().Error())
			return true
		case <-over:
			return false
		case <-ctx.Done():
			return false
		case <-time.After(20 * time.Millisecond):
		}
		if d := lease.Deadline(); !d.IsZero() {
			deadline = d
		}
	}
}

// excuse fails the test for what no failover explains.
func (l *load) excuse(err error) {
	for _, never := range []error{
		pglock.ErrNotMigrated, pglock.ErrNotAllowed, pglock.ErrInvalidOption, pglock.ErrInvalidName, pglock.ErrTokensBehind, pglock.ErrClosed,
	} {
		if errors.Is(err, never) {
			l.t.Errorf("Acquire: %v", err)
		}
	}
}

// grants waits for so many grants.
func (l *load) grants(n int) {
	l.t.Helper()
	late := time.After(time.Minute)
	for range n {
		select {
		case <-l.told:
		case <-late:
			l.t.Fatal("the clients were granted nothing for a minute")
		}
	}
}

// found stops the clients and returns what is wrong with what they were told.
func (l *load) found() history.Report {
	l.stop()
	return history.Check(l.record.History(), history.Options{LogLost: true})
}

// kinds counts violations.
func kinds(r history.Report) string {
	count := map[history.Kind]int{}
	for _, v := range r.Violations {
		count[v.Kind]++
	}
	return fmt.Sprintf("%d grants told, %d overlaps, %d tokens repeated, %d fell", r.Stats.Told,
		count[history.OverlappingTrust], count[history.RepeatedToken], count[history.FallingToken])
}
