package gocronlock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/jonboulle/clockwork"

	gocronlock "github.com/fencedlock/fencedlock/adapters/gocron"
	"github.com/fencedlock/fencedlock/internal/ticktest"
	"github.com/fencedlock/fencedlock/pglock"
)

// patience bounds waits, and ends only tests that fail anyway.
const patience = 30 * time.Second

func TestMain(m *testing.M) { ticktest.Main(m, serve) }

// serve is what each replica of the tests with processes does.
func serve(r *ticktest.Replica) (stop func() error, err error) {
	locker, err := gocronlock.NewLocker(r.Locks, ticktest.Every, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker), gocron.WithClock(aheadClock{clockwork.NewRealClock(), r.Ahead}))
	if err != nil {
		return nil, err
	}
	_, err = s.NewJob(gocron.CronJob(ticktest.Crontab, true), locker.Task(ticktest.Job, r.Run), gocron.WithName(ticktest.Job),
		gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { r.Refused(err) })))
	s.Start()
	return s.Shutdown, err
}

// An aheadClock says too much, always by as much.
type aheadClock struct {
	clockwork.Clock
	by time.Duration
}

func (c aheadClock) Now() time.Time { return c.Clock.Now().Add(c.by) }

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

// newLocker makes a locker that keeps what it has logged.
func newLocker(t *testing.T, c *pglock.Client, every time.Duration) (*gocronlock.Locker, *logged) {
	t.Helper()
	log := &logged{lines: make(chan string, 100)}
	l, err := gocronlock.NewLocker(c, every, slog.New(log))
	if err != nil {
		t.Fatal(err)
	}
	return l, log
}

// A logged is a slog.Handler that keeps the lines.
type logged struct {
	slog.Handler
	lines chan string
}

func (l *logged) Enabled(context.Context, slog.Level) bool { return true }

func (l *logged) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	r.Attrs(func(a slog.Attr) bool { line += fmt.Sprintf(" %s=%v", a.Key, a.Value); return true })
	l.lines <- line
	return nil
}

// A replica is a scheduler with one job, and what has become of its ticks.
type replica struct {
	scheduler gocron.Scheduler
	refused   chan error // what the locker has answered, where it is an error
	failed    chan error // what the job has answered, where it is an error
	panicked  chan any   // what the scheduler has recovered
}

// start starts a scheduler with one job, which ticks at once and then as the definition says.
func start(t *testing.T, every time.Duration, task gocron.Task, jobOptions []gocron.JobOption, options ...gocron.SchedulerOption) *replica {
	t.Helper()
	r := &replica{refused: make(chan error, 100), failed: make(chan error, 100), panicked: make(chan any, 100)}
	var err error
	if r.scheduler, err = gocron.NewScheduler(options...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.scheduler.Shutdown(); err != nil {
			t.Errorf("shutting down: %v", err)
		}
	})
	jobOptions = append([]gocron.JobOption{
		gocron.WithStartAt(gocron.WithStartImmediately()),
		gocron.WithEventListeners(
			gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { r.refused <- err }),
			gocron.AfterJobRunsWithError(func(_ uuid.UUID, _ string, err error) { r.failed <- err }),
			gocron.AfterJobRunsWithPanic(func(_ uuid.UUID, _ string, v any) { r.panicked <- v }),
		),
	}, jobOptions...)
	if _, err := r.scheduler.NewJob(gocron.DurationJob(every), task, jobOptions...); err != nil {
		t.Fatal(err)
	}
	r.scheduler.Start()
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

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}
