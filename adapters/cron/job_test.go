package cronlock_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	cronlock "github.com/fencedlock/fencedlock/adapters/cron"
	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/internal/ticktest"
	"github.com/fencedlock/fencedlock/pglock"
)

var errWork = errors.New("the work failed")

// free is a query for WaitFor. That waits for less than a TTL.
const free = `SELECT NOT EXISTS (SELECT FROM pglock.inspect WHERE held)`

func TestEachTickRunsOnceOnReplicasWhoseClocksDiffer(t *testing.T) {
	t.Parallel()
	ticktest.EachTickRunsOnce(t)
}

func TestAKilledRunnerIsFollowed(t *testing.T) {
	t.Parallel()
	ticktest.AKilledRunnerIsFollowed(t)
}

// A run is one run of a job, as the job sees it.
type run struct {
	ctx   context.Context
	lease *pglock.Lease
	end   chan error
}

// A work waits in each run for the test to end it, or for its context.
type work struct {
	runs    chan *run
	at      atomic.Int32 // runs at this moment
	overlap atomic.Bool
}

func newWork() *work { return &work{runs: make(chan *run, 100)} }

func (w *work) do(ctx context.Context, lease *pglock.Lease) error {
	if w.at.Add(1) > 1 {
		w.overlap.Store(true)
	}
	defer w.at.Add(-1)
	r := &run{ctx, lease, make(chan error, 1)}
	w.runs <- r
	select {
	case err := <-r.end:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func TestOneOfFourSchedulersRunsATick(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	var runs atomic.Int32
	ran := make(chan struct{}, 4)
	refusals := make(chan error, 4)
	for i := range 4 { // no run takes so long that the name is not kept
		if i == 2 { // the others come when all is over
			happens(t, "a run", ran)
			d.WaitFor(t, free)
		}
		r := start(t, client(t, d.URL, pglock.Config{}), &once{}, time.Minute, func(context.Context, *pglock.Lease) error {
			runs.Add(1)
			ran <- struct{}{}
			return nil
		})
		go func() {
			select {
			case err := <-r.skipped:
				refusals <- err
			case told := <-r.told:
				refusals <- told.err
			case <-t.Context().Done():
			}
		}()
	}
	for range 3 {
		if err := happens(t, "a refusal", refusals); !errors.Is(err, pglock.ErrHeld) {
			t.Errorf("refused: %v", err)
		}
	}
	if n := runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

func TestWithoutTheDatabaseTheJobDoesNotRun(t *testing.T) {
	t.Parallel()
	for what, spoil := range map[string]func(*pgtest.Proxy){
		"gone":   func(p *pgtest.Proxy) { p.Refuse(true); p.Cut() },
		"silent": func(p *pgtest.Proxy) { p.Stall(pgtest.ToClient) }, // it may grant what nobody hears of
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			proxy := pgtest.NewProxy(t, d)
			var ill atomic.Bool
			ran := make(chan struct{}, 100)
			r := start(t, client(t, proxy.URL(), pglock.Config{}), secondly{}, 4*time.Second, func(context.Context, *pglock.Lease) error {
				if ill.Load() {
					t.Error("the job has run without the database")
				}
				ran <- struct{}{}
				return nil
			})
			happens(t, "a run", ran)
			d.WaitFor(t, free)
			spoil(proxy)
			for range 2 {
				told := happens(t, "an error", r.told)
				if told.msg != "a job was not run" || told.rest != "jobjob" || errors.Is(told.err, pglock.ErrHeld) {
					t.Errorf("told: %+v", told)
				}
				if what == "silent" && (!errors.Is(told.err, context.DeadlineExceeded) || !strings.Contains(told.err.Error(), "no answer within 1s")) {
					t.Errorf("told: %v", told.err)
				}
				ill.Store(true) // what was granted before has run
			}
			for len(ran) > 0 {
				<-ran
			}
			ill.Store(false)
			proxy.Refuse(false)
			proxy.Resume()
			happens(t, "a run, once the database is back", ran)
		})
	}
}

func TestAFunctionIsGivenTheLeaseOfItsJob(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	w := newWork()
	r := start(t, client(t, d.URL, pglock.Config{}), secondly{}, time.Second, w.do)
	first := happens(t, "a run", w.runs)
	token := pgtest.Query[int64](t, d, `SELECT token FROM pglock.inspect WHERE name = 'job' AND held`)
	if first.lease.Token() != fence.Token(token) || first.ctx.Err() != nil {
		t.Errorf("%v, its context %v; the database has token %d", first.lease, first.ctx.Err(), token)
	}
	first.end <- errWork
	wantTold(t, r, "a job failed", errWork)
	second := happens(t, "the next run", w.runs)
	if second.lease.Token() <= first.lease.Token() {
		t.Errorf("%v after %v", second.lease, first.lease)
	}

	d.Exec(t, `DELETE FROM pglock.leases`) // the next renewal finds out

	happens(t, "the end of the context", second.ctx.Done())
	wantTold(t, r, "a job failed", pglock.ErrLost)
}

// wantTold waits until the logger was told that.
func wantTold(t *testing.T, r *replica, msg string, err error) {
	t.Helper()
	for {
		told := happens(t, msg, r.told)
		if told.msg == msg && errors.Is(told.err, err) {
			return
		}
		t.Logf("told: %+v", told) // a busy machine may miss a tick
	}
}

func TestAShutDownEndsTheContextOfAJobAndNotItsLease(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	valid, begun := make(chan bool, 1), make(chan struct{}, 1)
	r := start(t, client(t, d.URL, pglock.Config{}), secondly{}, time.Second, func(ctx context.Context, lease *pglock.Lease) error {
		begun <- struct{}{}
		<-ctx.Done()
		valid <- lease.Valid()
		return nil
	})
	happens(t, "a run", begun)
	stopped := r.scheduler.Stop()
	r.end()
	happens(t, "the scheduler stops", stopped.Done())
	if !<-valid {
		t.Error("the lease ended before the job")
	}
	if !pgtest.Query[bool](t, d, free) { // and not a moment later: the client may be closed now
		t.Error("the lock is not released")
	}
}

func TestAJobThatOutlivesItsTTLIsNeverTwoAtOnce(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	w := newWork()
	for range 2 {
		start(t, client(t, d.URL, pglock.Config{TTL: 6 * time.Second}), secondly{}, time.Second, w.do)
	}
	first := happens(t, "a run", w.runs)
	d.WaitFor(t, `SELECT granted_at + ttl + interval '1 s' < clock_timestamp() FROM pglock.inspect`)
	if first.ctx.Err() != nil {
		t.Fatalf("the lease was lost: %v", context.Cause(first.ctx))
	}
	first.end <- nil
	happens(t, "the next run", w.runs)
	if w.overlap.Load() {
		t.Error("two at once")
	}
}

func TestASlowJobDoesNotOverlapItselfInOneProcess(t *testing.T) {
	t.Parallel()
	w := newWork()
	r := start(t, client(t, pgtest.DB(t).URL, pglock.Config{}), secondly{}, time.Second, w.do)
	for range 2 {
		slow := happens(t, "a run", w.runs)
		for range 3 { // ticks of the same process
			happens(t, "a skipped tick", r.skipped)
		}
		slow.end <- nil
	}
	if w.overlap.Load() {
		t.Error("two at once")
	}
}

func TestAPanicReachesTheSchedulerAfterTheLockWasReleased(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	var runs atomic.Int32
	again := make(chan struct{}, 100)
	r := start(t, client(t, d.URL, pglock.Config{}), secondly{}, time.Second, func(context.Context, *pglock.Lease) error {
		switch runs.Add(1) {
		case 1:
			panic(errWork)
		case 2:
			runtime.Goexit()
		}
		again <- struct{}{}
		return nil
	})
	wantTold(t, r, "panic", errWork)
	before := pgtest.Query[time.Time](t, d, `SELECT clock_timestamp()`)
	happens(t, "the run after the next", again)
	// Neither waited for a lease to run out.
	if after := pgtest.Query[time.Time](t, d, `SELECT granted_at FROM pglock.leases`); after.Sub(before) > pglock.DefaultTTL-time.Second {
		t.Errorf("it came after %v", after.Sub(before))
	}
}

func TestWhatCannotWorkIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	c := client(t, "postgres://127.0.0.1:1/none", pglock.Config{})
	f := func(context.Context, *pglock.Lease) error { return nil }
	_, noClient := cronlock.NewJob(nil, "job", time.Minute, f, cronlock.Config{})
	_, noFunction := cronlock.NewJob(c, "job", time.Minute, nil, cronlock.Config{})
	_, tooOften := cronlock.NewJob(c, "job", time.Second-1, f, cronlock.Config{})
	for what, err := range map[string]error{"no client": noClient, "no function": noFunction, "too often": tooOften} {
		if !errors.Is(err, pglock.ErrInvalidOption) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, name := range []string{"", strings.Repeat("n", 256), "a\x00b"} {
		if _, err := cronlock.NewJob(c, name, time.Minute, f, cronlock.Config{}); !errors.Is(err, pglock.ErrInvalidName) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
