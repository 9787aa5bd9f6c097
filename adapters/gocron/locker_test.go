package gocronlock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"

	gocronlock "github.com/fencedlock/fencedlock/adapters/gocron"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// free is a query for WaitFor. That waits for less than a TTL.
const free = `SELECT NOT EXISTS (SELECT FROM pglock.inspect WHERE held)`

func TestOneOfFourSchedulersRunsATick(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	var clients []*pglock.Client
	for range 4 {
		clients = append(clients, client(t, d.URL, pglock.Config{}))
	}
	for mode, options := range map[string]struct {
		job       []gocron.JobOption
		scheduler []gocron.SchedulerOption
	}{
		"plain":                  {},
		"singleton, rescheduled": {job: []gocron.JobOption{gocron.WithSingletonMode(gocron.LimitModeReschedule)}},
		"singleton, waiting":     {job: []gocron.JobOption{gocron.WithSingletonMode(gocron.LimitModeWait)}},
		"limit, rescheduled":     {scheduler: []gocron.SchedulerOption{gocron.WithLimitConcurrentJobs(1, gocron.LimitModeReschedule)}},
		"limit, waiting":         {scheduler: []gocron.SchedulerOption{gocron.WithLimitConcurrentJobs(1, gocron.LimitModeWait)}},
		"a locker of the job":    {scheduler: []gocron.SchedulerOption{gocron.WithDistributedLocker(refusing{})}},
	} {
		var runs atomic.Int32
		ran := make(chan struct{}, 4)
		task := gocron.NewTask(func() { runs.Add(1); ran <- struct{}{} })
		var replicas []*replica
		for i, c := range clients {
			if i == 2 { // the others come when all is over
				happens(t, mode+": a run", ran)
				d.WaitFor(t, free)
			}
			locker, _ := newLocker(t, c, time.Minute) // no run takes so long that the name is not kept
			job := append([]gocron.JobOption{gocron.WithName(mode)}, options.job...)
			scheduler := options.scheduler
			if mode == "a locker of the job" {
				job = append(job, gocron.WithDistributedJobLocker(locker))
			} else {
				scheduler = append([]gocron.SchedulerOption{gocron.WithDistributedLocker(locker)}, scheduler...)
			}
			replicas = append(replicas, start(t, time.Hour, task, job, scheduler...))
		}
		refusals := make(chan error)
		for _, r := range replicas {
			go func() {
				select {
				case err := <-r.refused:
					refusals <- err
				case <-t.Context().Done():
				}
			}()
		}
		for range 3 {
			wantErr(t, mode, happens(t, mode+": a refusal", refusals), pglock.ErrHeld)
		}
		if n := runs.Load(); n != 1 {
			t.Errorf("%s: %d runs", mode, n)
		}
	}
}

// A refusing locker is not asked where the job has its own.
type refusing struct{}

func (refusing) Lock(context.Context, string) (gocron.Lock, error) {
	return nil, errors.New("the scheduler's locker was asked")
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
			locker, log := newLocker(t, client(t, proxy.URL(), pglock.Config{}), 4*time.Second)
			var ill atomic.Bool
			ran := make(chan struct{}, 100)
			r := start(t, time.Second, gocron.NewTask(func() {
				if ill.Load() {
					t.Error("the job has run without the database")
				}
				ran <- struct{}{}
			}), []gocron.JobOption{gocron.WithName("job")}, gocron.WithDistributedLocker(locker))
			happens(t, "a run", ran)
			d.WaitFor(t, free)
			spoil(proxy)
			for failed := 0; failed < 2; { // between them are ticks for which the name is kept
				err := happens(t, "a refusal", r.refused)
				if errors.Is(err, pglock.ErrHeld) {
					continue
				}
				if what == "silent" && (!errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no answer within 1s")) {
					t.Errorf("the refusal: %v", err)
				}
				if line := happens(t, "a line in the log", log.lines); !strings.Contains(line, "a job was not run job=job") {
					t.Errorf("logged: %s", line)
				}
				ill.Store(true) // what was granted before has run
				failed++
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

func TestTheLockIsReleasedWhenTheSchedulerShutsDown(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	locker, log := newLocker(t, client(t, d.URL, pglock.Config{}), time.Minute)
	begun := make(chan struct{}, 1)
	r := start(t, time.Hour, gocron.NewTask(func(ctx context.Context) error { begun <- struct{}{}; <-ctx.Done(); return nil }),
		[]gocron.JobOption{gocron.WithName("job")}, gocron.WithDistributedLocker(locker))
	happens(t, "a run", begun)
	if err := r.scheduler.Shutdown(); err != nil {
		t.Fatal(err)
	}
	d.WaitFor(t, free)
	select {
	case line := <-log.lines:
		t.Errorf("logged: %s", line)
	default:
	}
}

func TestALossUnderAFunctionThatCannotBeToldIsLogged(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	locker, log := newLocker(t, client(t, d.URL, pglock.Config{}), time.Minute)
	begun, end := make(chan struct{}, 1), make(chan struct{})
	r := start(t, time.Hour, gocron.NewTask(func() { begun <- struct{}{}; <-end }),
		[]gocron.JobOption{gocron.WithName("job")}, gocron.WithDistributedLocker(locker))
	happens(t, "a run", begun)

	d.Exec(t, `DELETE FROM pglock.leases`) // the next renewal finds out

	line := happens(t, "a line in the log, while the job runs", log.lines)
	if !strings.Contains(line, "the lease ended while its job ran job=job") || !strings.Contains(line, "lost: deleted") {
		t.Errorf("logged: %s", line)
	}
	close(end)
	if err := r.scheduler.Shutdown(); err != nil {
		t.Error(err)
	}
	if len(log.lines) > 0 {
		t.Errorf("logged again: %s", <-log.lines)
	}
}

func work() {}

func generic[T any]() {}

type worker struct{}

func (*worker) work() {}

func TestAJobWithoutANameOfItsOwnIsRefused(t *testing.T) {
	t.Parallel()
	locker, log := newLocker(t, client(t, "postgres://127.0.0.1:1/none", pglock.Config{}), time.Minute)
	for what, task := range map[string]gocron.Task{
		"function": gocron.NewTask(work),
		"closure":  gocron.NewTask(func() { t.Error("it has run") }),
		"method":   gocron.NewTask((&worker{}).work),
		"generic":  gocron.NewTask(generic[struct{ a int }]),
		"imported": gocron.NewTask(strings.ToUpper, "a"),
		"Task":     locker.Task("job", func(context.Context, *pglock.Lease) error { t.Error("it has run"); return nil }),
	} {
		r := start(t, time.Hour, task, nil, gocron.WithDistributedLocker(locker))
		wantErr(t, what, happens(t, what+": a refusal", r.refused), gocronlock.ErrUnnamed)
		if line := happens(t, "a line in the log", log.lines); !strings.Contains(line, "gocron.WithName") {
			t.Errorf("%s: logged: %s", what, line)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, name := range []string{"job", "reports/nightly", "v1.2/report"} {
		if _, err := locker.Lock(ended, name); errors.Is(err, gocronlock.ErrUnnamed) || !errors.Is(err, context.Canceled) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestWhatCannotWorkIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	c := client(t, "postgres://127.0.0.1:1/none", pglock.Config{})
	_, noClient := gocronlock.NewLocker(nil, time.Minute, nil)
	_, tooOften := gocronlock.NewLocker(c, time.Second-1, nil)
	_, noElector := gocronlock.NewElector(nil)
	for what, err := range map[string]error{"no client": noClient, "too often": tooOften, "no elector": noElector} {
		wantErr(t, what, err, pglock.ErrInvalidOption)
	}
}
