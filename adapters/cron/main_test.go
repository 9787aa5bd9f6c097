package cronlock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	cronlock "github.com/fencedlock/fencedlock/adapters/cron"
	"github.com/fencedlock/fencedlock/internal/ticktest"
	"github.com/fencedlock/fencedlock/pglock"
)

// patience bounds waits, and ends only tests that fail anyway.
const patience = 30 * time.Second

func TestMain(m *testing.M) { ticktest.Main(m, serve) }

// serve is what each replica of the tests with processes does.
func serve(r *ticktest.Replica) (stop func() error, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	job, err := cronlock.NewJob(r.Locks, ticktest.Job, ticktest.Every, r.Run, cronlock.Config{Context: ctx, Logger: recorder{r}})
	if err != nil {
		cancel()
		return nil, err
	}
	schedule, err := cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow).Parse(ticktest.Crontab)
	c := cron.New()
	c.Schedule(aheadSchedule{schedule, r.Ahead}, job)
	c.Start()
	return func() error {
		stopped := c.Stop()
		cancel()
		<-stopped.Done()
		return nil
	}, err
}

// An aheadSchedule is that of a clock which says too much, always by as much.
type aheadSchedule struct {
	cron.Schedule
	by time.Duration
}

func (s aheadSchedule) Next(t time.Time) time.Time { return s.Schedule.Next(t.Add(s.by)).Add(-s.by) }

// A recorder is told why a tick did not run.
type recorder struct{ r *ticktest.Replica }

func (l recorder) Info(_ string, keysAndValues ...any) { l.r.Refused(keysAndValues[3].(error)) }

func (l recorder) Error(err error, msg string, _ ...any) {
	if msg == "a job was not run" {
		l.r.Refused(err)
	}
}

// client opens a client of a database, as each replica has one.
func client(t *testing.T, url string, cfg pglock.Config) *pglock.Client {
	t.Helper()
	c, err := pglock.Open(url, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := c.Close(ctx); err != nil && !t.Failed() {
			t.Logf("closing: %v", err) // its database may be gone, as the test wished
		}
	})
	return c
}

// A replica is a scheduler with one job, and what its logger was told.
type replica struct {
	scheduler *cron.Cron
	skipped   chan error
	told      chan told
	end       context.CancelFunc
}

type told struct {
	msg  string
	err  error
	rest string
}

func (r *replica) Info(msg string, keysAndValues ...any) {
	if msg == "skip" {
		r.skipped <- keysAndValues[3].(error)
	}
}

func (r *replica) Error(err error, msg string, keysAndValues ...any) {
	r.told <- told{msg, err, fmt.Sprint(keysAndValues...)}
}

// secondly is a cron.Schedule that ticks each second.
type secondly struct{}

func (secondly) Next(t time.Time) time.Time { return t.Truncate(time.Second).Add(time.Second) }

// once is a cron.Schedule that ticks at once, and never again.
type once struct{ asked bool }

func (o *once) Next(t time.Time) time.Time {
	if o.asked {
		return time.Time{}
	}
	o.asked = true
	return t.Add(time.Millisecond)
}

// start starts a scheduler with one job "job".
func start(t *testing.T, c *pglock.Client, schedule cron.Schedule, every time.Duration, f func(context.Context, *pglock.Lease) error) *replica {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &replica{skipped: make(chan error, 100), told: make(chan told, 100), end: cancel}
	job, err := cronlock.NewJob(c, "job", every, f, cronlock.Config{Context: ctx, Logger: r})
	if err != nil {
		t.Fatal(err)
	}
	r.scheduler = cron.New(cron.WithChain(cron.Recover(r)))
	r.scheduler.Schedule(schedule, job)
	r.scheduler.Start()
	t.Cleanup(func() {
		stopped := r.scheduler.Stop()
		cancel()
		happens(t, "the scheduler stops", stopped.Done())
	})
	return r
}

// happens waits for an event.
func happens[T any](t *testing.T, what string, event <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-event:
	case <-time.After(patience):
		t.Fatalf("not within %v: %s", patience, what)
	}
	return v
}
