package once_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/fencedlock/fencedlock/pglock/once"
)

// A pair is a primary and its standby.
type pair struct {
	primary *pgtest.Database
	standby *pgtest.Replica
	url     string // of whichever is the primary
}

func newPair(t *testing.T, settings map[string]string) pair {
	t.Helper()
	_, primary := pgtest.OwnServer(t, pgtemp.Options{Settings: settings})
	primary.Exec(t, `CREATE TABLE effects (due timestamptz)`)
	standby := primary.Replica(t, pgtemp.StandbyOptions{})
	both, err := url.Parse(primary.URL)
	wantErr(t, "the URL of the primary", err, nil)
	other, err := url.Parse(standby.URL)
	wantErr(t, "the URL of the standby", err, nil)
	both.Host += "," + other.Host
	query := both.Query()
	query.Set("target_session_attrs", "read-write")
	query.Set("synchronous_commit", "on")
	both.RawQuery = query.Encode()
	return pair{primary, standby, both.String()}
}

// failOver is the end of the primary. What did not reach the standby is lost.
func (p pair) failOver(t *testing.T) {
	t.Helper()
	wantErr(t, "Halt", p.primary.Server.Halt(soon(t), pgtemp.Immediate), nil)
	wantErr(t, "Promote", p.standby.Server.Promote(soon(t)), nil)
}

func (p pair) pool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), p.url)
	wantErr(t, "the pool", err, nil)
	t.Cleanup(pool.Close)
	return pool
}

// A commit that a synchronous standby did not get is on the primary all the same, once its wait has been cut short. It is no success
// that anybody is told of: the failover may lose it.
func TestASuccessThatIsToldIsOnTheSynchronousStandby(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		run  func(r *once.Runner, pool *pgxpool.Pool, f func()) error
		want once.Outcome // after the failover
		err  error
	}{
		"Run": {func(r *once.Runner, _ *pgxpool.Pool, f func()) error {
			return r.Run(soon(t), "report", tick, func(context.Context, *pglock.Lease) error { f(); return nil })
		}, once.Done, nil}, // it says so again
		"Tx": {func(r *once.Runner, pool *pgxpool.Pool, f func()) error {
			return r.Tx(soon(t), pool, "report", tick, func(ctx context.Context, tx pgx.Tx) error { f(); return effect(tick)(ctx, tx) })
		}, once.Failed, fence.ErrCommitUnknown},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := newPair(t, map[string]string{"synchronous_standby_names": "standby"})
			p.primary.WaitFor(t, `SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')`)
			pool := p.pool(t)
			a := runner(t, p.url, "a", pool)
			const hangs = `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')`
			frozen := make(chan struct{})
			running := async(func() error { return c.run(a, pool, func() { p.standby.Way.Freeze(); close(frozen) }) })
			happens(t, "f runs", frozen) // what waited before did not wait in vain
			p.primary.WaitFor(t, hangs)
			p.primary.KillBackends(t, `wait_event = 'SyncRep'`)
			p.primary.WaitFor(t, hangs+` OR NOT held FROM pglock.holder($1)`, lockName) // it says so again and waits, or it takes that for a success

			p.failOver(t)

			wantErr(t, what, happens(t, "it ends", running), c.err)
			rec := last(t, runner(t, p.standby.URL, "b", p.standby.Pool(t)))
			if rec.Outcome != c.want || count(t, p.standby.Database) != 0 {
				t.Errorf("on record: %+v, with %d effects; want %s, with none", rec, count(t, p.standby.Database), c.want)
			}
		})
	}
}

// before is a pool that does something before the first attempt begins.
type before struct {
	*pgxpool.Pool
	once sync.Once
	do   func()
}

func (b *before) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if strings.Contains(sql, "once_start") {
		b.once.Do(b.do)
	}
	return b.Pool.Query(ctx, sql, args...)
}

// The standby that takes over has never heard of the lock. That is a lost lease, and no Runner with the wrong database.
func TestAGrantThatAFailoverLostIsLost(t *testing.T) {
	t.Parallel()
	const ttlCap = 3 * time.Second
	p := newPair(t, nil)
	p.primary.Exec(t, `UPDATE pglock.guard SET cap_us = $1`, ttlCap.Microseconds())
	p.standby.WaitReplayed(t, p.primary)
	p.standby.Way.Freeze()
	a := runner(t, p.url, "a", &before{Pool: p.pool(t), do: func() { p.failOver(t) }})
	short := once.Lease(pglock.TTL(ttlCap))

	err := a.Run(soon(t), "report", tick, nothing(t), short)

	wantErr(t, "Run", err, pglock.ErrLost)
	if errors.Is(err, fence.ErrElsewhere) {
		t.Errorf("Run = %v", err)
	}
	wantErr(t, "Run again", a.Run(soon(t), "report", tick, does(nil), short), nil) // when grants are not held back any more
}
