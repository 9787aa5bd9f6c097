package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/history"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// stressKinds are what is asked for: names that readers share, a semaphore, names of whatever kind, and several at once.
var stressKinds = []struct {
	names []string
	opts  []pglock.Option
	fair  bool
}{
	{names: []string{"doc"}, opts: []pglock.Option{pglock.Shared()}},
	{names: []string{"doc"}, opts: []pglock.Option{pglock.Shared()}},
	{names: []string{"doc"}},
	{names: []string{"notes"}, opts: []pglock.Option{pglock.Shared()}},
	{names: []string{"notes"}},
	{names: []string{"notes"}, fair: true},
	{names: []string{"doc", "notes"}, opts: []pglock.Option{pglock.Shared()}},
	{names: []string{"notes", "doc"}},
	{names: []string{"jobs"}, opts: []pglock.Option{pglock.Permits(3)}},
	{names: []string{"jobs"}, opts: []pglock.Option{pglock.Permits(3)}},
	{names: []string{"jobs"}, opts: []pglock.Option{pglock.Permits(3)}, fair: true},
	{names: []string{"any"}},
	{names: []string{"any"}, opts: []pglock.Option{pglock.Shared()}},
	{names: []string{"any"}, opts: []pglock.Option{pglock.Permits(1)}},
	{names: []string{"any"}, opts: []pglock.Option{pglock.Permits(2)}},
	{names: []string{"any", "doc"}},
}

// What holders write in transactions that are tied to their grants.
const (
	kindsTables = `CREATE TABLE stress_held (name text, slot int, token bigint); CREATE INDEX ON stress_held (name)`
	kindsWrite  = `INSERT INTO stress_held (name, slot, token) VALUES ($1, $2, $3)`
	kindsLook   = `SELECT count(*) FROM stress_held WHERE name = $1 AND token <> $2 AND (slot = $3 OR slot = 0 OR $3 = 0)` // by whom the grant excludes
)

// Readers, writers, holders of permits and of several names come and go, lapse, and are revoked, under the same faults. Beside what the
// history tells, no holder may see a row appear that somebody has written under a grant which its own excludes: transactions end
// before that. It runs for a few seconds, and for five minutes where PGLOCK_LONG=1; PGLOCK_STRESS and PGLOCK_SEED are as above.
func TestRandomFaultsBreakNoKindOfLock(t *testing.T) {
	seed, length := stressSettings(t)
	if pgtest.Long() && os.Getenv("PGLOCK_STRESS") == "" {
		length = 5 * time.Minute
	}
	t.Logf("PGLOCK_SEED=%d, %v", seed, length)
	s := newStress(t, seed, 6, []string{"doc", "notes", "jobs", "any"}, kindsTurn)
	s.least = history.Stats{Grants: 300, Takeovers: 20, Told: 200, Renewals: 1, Revocations: 3, WritesAccepted: 10}
	s.remove = `SELECT pglock.prune('0', 100) WHERE $1 <> ''`
	s.exec(t, kindsTables)
	s.exec(t, `UPDATE pglock.guard SET cap_us = 2000000`) // so that something is pruned

	s.revoking(t)
	s.run(t, length)
}

// revoking revokes one name after the other, until the test ends.
func (s *stress) revoking(t *testing.T) {
	t.Helper()
	operator := client(t, s.db)
	ctx, cancel := context.WithCancel(t.Context())
	random := rand.New(rand.NewPCG(s.seed, 1<<32))
	var loop sync.WaitGroup
	t.Cleanup(func() { cancel(); loop.Wait() })
	loop.Go(func() {
		for ctx.Err() == nil {
			name := s.names[random.IntN(len(s.names))]
			_, err := operator.Revoke(ctx, name, between(random, 0, 300*time.Millisecond))
			if err != nil && ctx.Err() == nil && !errors.Is(err, fence.ErrNeverGranted) {
				t.Errorf("PGLOCK_SEED=%d: %v", s.seed, err)
			}
			select {
			case <-time.After(between(random, 0, 300*time.Millisecond)):
			case <-ctx.Done():
			}
		}
	})
}

func kindsTurn(w *stressWorker, ctx context.Context, owner string) {
	k := stressKinds[w.rand.IntN(len(stressKinds))]
	opts := append([]pglock.Option{}, k.opts...)
	careless := w.rand.IntN(6) == 0
	switch {
	case careless:
		opts = append(opts, pglock.NoRenewal(), pglock.TTL(pglock.MinTTL+time.Duration(w.rand.IntN(50))*time.Millisecond))
	case w.rand.IntN(20) == 0:
		opts = append(opts, pglock.TTL(400*time.Millisecond), pglock.MaxHold(600*time.Millisecond))
	}
	if w.rand.IntN(10) == 0 {
		opts = append(opts, pglock.LockDelay(between(w.rand, time.Millisecond, 200*time.Millisecond)))
	}
	call := w.client.AcquireAll
	if k.fair {
		opts = append(opts, pglock.Fair())
	} else if w.rand.IntN(3) == 0 {
		call = w.client.TryAcquireAll
	}
	l, holding := w.acquireAll(ctx, owner, call, k.names, opts...)
	if l == nil {
		return
	}
	g := l.GrantOf(k.names[w.rand.IntN(len(k.names))])
	before, looked := w.look(ctx, g)
	if released := w.writeHeld(ctx, l, g, holding); released {
		return
	}
	if g.Slot == 0 {
		w.write(ctx, g, owner)
	}
	if careless || w.rand.IntN(15) == 0 {
		w.pause(l.Context(), 0, 400*time.Millisecond)
	}
	if after, ok := w.look(ctx, g); looked && ok && after != before && l.Valid() {
		w.t.Errorf("%s: %v saw %d rows appear that were written under grants which it excludes", w.name, l, after-before)
	}
	if careless && w.rand.IntN(2) == 0 {
		<-l.Done() // by its end
		w.writeHeld(ctx, l, g, holding)
		return
	}
	if l.Err() == nil || w.rand.IntN(2) == 0 {
		w.release(ctx, l, holding)
	}
}

// look counts what others have written.
func (w *stressWorker) look(ctx context.Context, g fence.Grant) (n int, ok bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := w.host.pool.QueryRow(ctx, kindsLook, g.Lock, g.Token, g.Slot).Scan(&n); err != nil {
		w.excuse(err)
		return 0, false
	}
	return n, true
}

// writeHeld writes in a transaction that is tied to the grant, and that sometimes outlives its release.
func (w *stressWorker) writeHeld(ctx context.Context, l *pglock.Lease, g fence.Grant, holding holdings) (released bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	err := fence.HeldTx(ctx, w.host.pool, g, func(ctx context.Context, tx pgx.Tx) error {
		if released = w.rand.IntN(4) == 0 && l.Err() == nil; released {
			w.release(ctx, l, holding)
		}
		w.pause(ctx, 0, 20*time.Millisecond)
		_, err := tx.Exec(ctx, kindsWrite, g.Lock, g.Slot, g.Token)
		return err
	})
	if err != nil && !released {
		w.excuse(fmt.Errorf("a held transaction: %w", err))
	}
	return released
}
