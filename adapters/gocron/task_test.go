package gocronlock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"

	gocronlock "github.com/fencedlock/fencedlock/adapters/gocron"
	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

var errWork = errors.New("the work failed")

// A run is one run of a job, as the job sees it.
type run struct {
	ctx   context.Context
	lease *pglock.Lease
	end   chan error
}

// A job waits in each run for the test to end it, or for its context.
type job struct {
	runs    chan *run
	at      atomic.Int32 // runs at this moment
	overlap atomic.Bool
}

func newJob() *job { return &job{runs: make(chan *run, 100)} }

func (j *job) work(ctx context.Context, lease *pglock.Lease) error {
	if j.at.Add(1) > 1 {
		j.overlap.Store(true)
	}
	defer j.at.Add(-1)
	r := &run{ctx, lease, make(chan error, 1)}
	j.runs <- r
	select {
	case err := <-r.end:
		return err
	case <-ctx.Done():
		return nil
	}
}

// ticking starts a replica whose job "job" ticks each second.
func ticking(t *testing.T, c *pglock.Client, f func(context.Context, *pglock.Lease) error) *replica {
	t.Helper()
	locker, _ := newLocker(t, c, time.Second)
	return start(t, time.Second, locker.Task("job", f), []gocron.JobOption{gocron.WithName("job")}, gocron.WithDistributedLocker(locker))
}

func TestATaskIsGivenTheLeaseOfItsJob(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	j := newJob()
	r := ticking(t, client(t, d.URL, pglock.Config{}), j.work)
	first := happens(t, "a run", j.runs)
	token := pgtest.Query[int64](t, d, `SELECT token FROM pglock.inspect WHERE name = 'job' AND held`)
	if first.lease.Token() != fence.Token(token) || first.lease.Name() != "job" || first.ctx.Err() != nil {
		t.Errorf("%v, its context %v; the database has token %d", first.lease, first.ctx.Err(), token)
	}
	first.end <- errWork
	wantErr(t, "what gocron is told", happens(t, "a failure", r.failed), errWork)
	second := happens(t, "the next run", j.runs)
	if second.lease.Token() <= first.lease.Token() {
		t.Errorf("%v after %v", second.lease, first.lease)
	}
}

func TestALossEndsTheContextOfATask(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	j := newJob()
	r := ticking(t, client(t, d.URL, pglock.Config{}), j.work)
	first := happens(t, "a run", j.runs)

	d.Exec(t, `DELETE FROM pglock.leases`) // the next renewal finds out

	happens(t, "the end of the context", first.ctx.Done())
	wantErr(t, "its cause", context.Cause(first.ctx), pglock.ErrLost)
	wantErr(t, "what gocron is told", happens(t, "a failure", r.failed), pglock.ErrLost)
}

func TestAShutDownEndsTheContextOfATaskAndNotItsLease(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	valid := make(chan bool, 1)
	begun := make(chan struct{}, 1)
	r := ticking(t, client(t, d.URL, pglock.Config{}), func(ctx context.Context, lease *pglock.Lease) error {
		begun <- struct{}{}
		<-ctx.Done()
		valid <- lease.Valid()
		return nil
	})
	happens(t, "a run", begun)
	if err := r.scheduler.Shutdown(); err != nil {
		t.Fatal(err)
	}
	if !<-valid {
		t.Error("the lease ended before the job")
	}
	d.WaitFor(t, free)
}

func TestAJobThatOutlivesItsTTLIsNeverTwoAtOnce(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	j := newJob()
	for range 2 {
		ticking(t, client(t, d.URL, pglock.Config{TTL: 6 * time.Second}), j.work)
	}
	first := happens(t, "a run", j.runs)
	d.WaitFor(t, `SELECT granted_at + ttl + interval '1 s' < clock_timestamp() FROM pglock.inspect`)
	if first.ctx.Err() != nil {
		t.Fatalf("the lease was lost: %v", context.Cause(first.ctx))
	}
	first.end <- nil
	happens(t, "the next run", j.runs)
	if j.overlap.Load() {
		t.Error("two at once")
	}
}

func TestASlowJobDoesNotOverlapItselfInOneProcess(t *testing.T) {
	t.Parallel()
	j := newJob()
	r := ticking(t, client(t, pgtest.DB(t).URL, pglock.Config{}), j.work)
	for range 2 {
		slow := happens(t, "a run", j.runs)
		for held := 0; held < 3; { // ticks of the same process
			if errors.Is(happens(t, "a refusal", r.refused), pglock.ErrHeld) {
				held++
			}
		}
		slow.end <- nil
	}
	if j.overlap.Load() {
		t.Error("two at once")
	}
}

func TestAPanicReachesTheSchedulerAndFreesTheLock(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	var runs atomic.Int32
	again := make(chan struct{}, 100)
	r := ticking(t, client(t, d.URL, pglock.Config{}), func(context.Context, *pglock.Lease) error {
		if runs.Add(1) == 1 {
			panic("oh")
		}
		again <- struct{}{}
		return nil
	})
	if v := happens(t, "the scheduler recovers", r.panicked); v != "oh" {
		t.Errorf("recovered %v", v)
	}
	wantErr(t, "what gocron is told", happens(t, "a failure", r.failed), gocron.ErrPanicRecovered)
	d.WaitFor(t, free)
	happens(t, "the next run", again)
}

// gocron waits for ever for a job that ended by Goexit, so the test ends with a process.
func TestGoexitFreesTheLock(t *testing.T) {
	t.Parallel()
	const variable = "GOCRONLOCK_GOEXIT"
	url := os.Getenv(variable)
	if url == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestGoexitFreesTheLock$")
		cmd.Env = append(os.Environ(), variable+"="+pgtest.DB(t).URL)
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != "the next run\n" {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	c, err := pglock.Open(url, pglock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	locker, err := gocronlock.NewLocker(c, time.Second, slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	var runs atomic.Int32
	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
	if err != nil {
		t.Fatal(err)
	}
	again := make(chan struct{}, 100)
	_, err = s.NewJob(gocron.DurationJob(time.Second), locker.Task("job", func(context.Context, *pglock.Lease) error {
		if runs.Add(1) == 1 {
			runtime.Goexit()
		}
		again <- struct{}{}
		return nil
	}), gocron.WithName("job"))
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	select {
	case <-again:
		fmt.Println("the next run")
		os.Exit(0)
	case <-time.After(pglock.DefaultTTL - time.Second): // by then the lock would be free anyway
		fmt.Println("no next run")
		os.Exit(1)
	}
}

func TestATaskThatHasNoLockDoesNotRun(t *testing.T) {
	t.Parallel()
	c := client(t, pgtest.DB(t).URL, pglock.Config{})
	locker, _ := newLocker(t, c, time.Minute)
	task := locker.Task("job", func(context.Context, *pglock.Lease) error { t.Error("it has run"); return nil })
	for what, r := range map[string]*replica{
		"no locker":    start(t, time.Hour, task, []gocron.JobOption{gocron.WithName("job")}),
		"another name": start(t, time.Hour, task, []gocron.JobOption{gocron.WithName("jop")}, gocron.WithDistributedLocker(locker)),
		"an elector": start(t, time.Hour, task, []gocron.JobOption{gocron.WithName("job")}, gocron.WithDistributedLocker(locker),
			gocron.WithDistributedElector(elected{})),
	} {
		wantErr(t, what, happens(t, what+": a failure", r.failed), gocronlock.ErrNoLock)
	}
}

type elected struct{}

func (elected) IsLeader(context.Context) error { return nil }
