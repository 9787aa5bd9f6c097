package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/history"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// A stressHost is where some clients live: they share a network, which is a proxy, and a record.
type stressHost struct {
	name   string
	url    string // through the proxy
	proxy  *pgtest.Proxy
	pool   *pgxpool.Pool // for the writes that the locks protect
	record *history.Recorder
}

func newStressHost(t *testing.T, d *pgtest.Database, i int) *stressHost {
	t.Helper()
	h := &stressHost{name: fmt.Sprintf("host%d", i), proxy: pgtest.NewProxy(t, d)}
	// A server may be set to lose commits in a crash, or not, and a session may be set otherwise.
	h.url = with(t, h.proxy.URL(), "application_name", h.name, "synchronous_commit", []string{"on", "off"}[i%2])
	pool, err := pgxpool.New(t.Context(), with(t, h.url, "pool_max_conns", "1"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	h.pool, h.record = pool, history.NewRecorder(h.name)
	return h
}

// A stressWorker uses one client after the other, and each for some locks.
type stressWorker struct {
	t          *testing.T
	names      []string
	goroutines int
	task       turn
	host       *stressHost
	name       string
	rand       *rand.Rand
	client     *pglock.Client

	granted chan<- struct{}
}

func (w *stressWorker) run(ctx context.Context) {
	for life := 0; ctx.Err() == nil; life++ {
		w.live(ctx, fmt.Sprintf("%s.%d", w.name, life))
	}
}

// live is the life of one client. It may end while it holds a lock.
func (w *stressWorker) live(ctx context.Context, owner string) {
	c, err := pglock.Open(w.host.url, pglock.Config{Owner: owner, TTL: between(w.rand, 500*time.Millisecond, 1500*time.Millisecond)})
	if err != nil {
		w.t.Error(err)
		return
	}
	w.client = c
	turns := 1 + w.rand.IntN(200)
	var all sync.WaitGroup
	for range w.goroutines { // of one process: locks are handed over between them
		one := *w
		one.rand = rand.New(rand.NewPCG(w.rand.Uint64(), 0))
		all.Go(func() {
			for range turns {
				if ctx.Err() != nil {
					break
				}
				one.task(&one, ctx, owner)
			}
		})
	}
	all.Wait()
	if w.rand.IntN(4) == 0 {
		if _, holding := w.acquire(ctx, owner); holding != nil {
			holding.Released() // before Close ends it, and another is granted it
		}
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := c.Close(end); err != nil && !errors.Is(err, pglock.ErrNotReleased) {
		w.t.Errorf("Close of %s: %v", owner, err)
	}
}

// turn takes a lock and works under it. One holder in six pays no attention to its lease.
func (w *stressWorker) turn(ctx context.Context, owner string) {
	careless, lasting := w.rand.IntN(6) == 0, w.rand.IntN(40) == 0
	var opts []pglock.Option
	if careless {
		opts = append(opts, pglock.NoRenewal(), pglock.TTL(pglock.MinTTL+time.Duration(w.rand.IntN(50))*time.Millisecond))
	} else if lasting {
		opts = append(opts, pglock.TTL(3*time.Second))
	}
	l, holding := w.acquire(ctx, owner, opts...)
	if l == nil {
		return
	}
	g := l.Grant()
	w.write(ctx, g, owner)
	switch {
	case careless:
		if w.rand.IntN(3) == 0 {
			l.Renew(ctx) //nolint:errcheck // it may be late
		}
		<-l.Done()
		w.pause(ctx, 0, 150*time.Millisecond) // while others are granted the lock, and write
		w.write(ctx, g, owner)
	case lasting:
		w.pause(l.Context(), 1200*time.Millisecond, 2*time.Second) // renewals carry it
		w.write(ctx, g, owner)
	case w.rand.IntN(8) == 0:
		w.pause(l.Context(), 20*time.Millisecond, 300*time.Millisecond)
		w.write(ctx, g, owner)
	default:
		w.pause(l.Context(), 0, 5*time.Millisecond)
	}
	w.release(ctx, l, holding)
}

func (w *stressWorker) release(ctx context.Context, l *pglock.Lease, all holdings) {
	all.Released()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := l.Release(end); err != nil && !errors.Is(err, pglock.ErrLost) && !errors.Is(err, pglock.ErrNotReleased) {
		w.t.Errorf("Release of %v: %v", l, err)
	}
}

// acquire asks for a lock. Both are nil if it was not granted.
func (w *stressWorker) acquire(ctx context.Context, owner string, opts ...pglock.Option) (*pglock.Lease, holdings) {
	call := w.client.AcquireAll
	if w.rand.IntN(3) == 0 {
		call = w.client.TryAcquireAll
	}
	return w.acquireAll(ctx, owner, call, []string{w.names[w.rand.IntN(len(w.names))]}, opts...)
}

// holdings are the trust in the names of one lease.
type holdings []*history.Holding

func (all holdings) Released() {
	for _, h := range all {
		h.Released()
	}
}

type acquireCall func(ctx context.Context, names []string, opts ...pglock.Option) (*pglock.Lease, error)

// acquireAll asks for locks, and records for how long they are trusted.
func (w *stressWorker) acquireAll(ctx context.Context, owner string, call acquireCall, names []string, opts ...pglock.Option) (*pglock.Lease, holdings) {
	ctx, cancel := context.WithTimeout(ctx, between(w.rand, 20*time.Millisecond, 500*time.Millisecond))
	defer cancel()
	l, err := call(ctx, names, opts...)
	if err != nil {
		w.excuse(err)
		return nil, nil
	}
	var all holdings
	for _, name := range names {
		all = append(all, w.host.record.Told(told(l.GrantOf(name), owner)))
	}
	select {
	case w.granted <- struct{}{}:
	default:
	}
	context.AfterFunc(l.Context(), func() {
		var lost *pglock.LostError
		if errors.As(context.Cause(l.Context()), &lost) {
			for _, holding := range all {
				holding.Lost(string(lost.Cause))
			}
		}
	})
	return l, all
}

func told(g fence.Grant, owner string) history.Grant {
	return history.Grant{Client: owner, Lock: g.Lock, Slot: g.Slot, Token: int64(g.Token)}
}

// excuse fails the test for an error that no cut connection explains.
func (w *stressWorker) excuse(err error) {
	var pe *pgconn.PgError
	wrong := errors.As(err, &pe) && pe.Code != "57P01" // killed
	for _, never := range []error{
		pglock.ErrNotMigrated, pglock.ErrNotAllowed, pglock.ErrInvalidOption, pglock.ErrInvalidName, pglock.ErrHeldBack,
		pglock.ErrTokensBehind, pglock.ErrReadOnly, pglock.ErrClosed, pglock.ErrReleased,
		fence.ErrNeverGranted, fence.ErrOtherLock, fence.ErrBehind, fence.ErrInvalid, fence.ErrNoToken,
	} {
		wrong = wrong || errors.Is(err, never)
	}
	if wrong {
		w.t.Errorf("%s: %v", w.name, err)
	}
}

// write makes a fenced write, to a resource or to a row. It does not look at the lease: stopping it is for the fence.
func (w *stressWorker) write(ctx context.Context, g fence.Grant, owner string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	resource := "resource/" + g.Lock
	var err error
	if w.rand.IntN(2) == 0 {
		err = fence.Tx(ctx, w.host.pool, g, resource, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO stress_writes (resource, lock, token) VALUES ($1, $2, $3)`, resource, g.Lock, g.Token)
			return err
		})
	} else {
		resource = "row/" + g.Lock
		err = stressRows.Upsert(ctx, w.host.pool, g, fence.Row{"name": g.Lock, "writer": owner}, fence.Again())
	}
	switch {
	case errors.Is(err, fence.ErrStale):
		w.host.record.Refused(told(g, owner), resource)
	case err != nil:
		w.excuse(err)
	}
}

func (w *stressWorker) pause(ctx context.Context, from, to time.Duration) {
	select {
	case <-time.After(between(w.rand, from, to)):
	case <-ctx.Done():
	}
}
