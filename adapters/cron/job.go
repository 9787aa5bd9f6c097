package cronlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/fencedlock/fencedlock/pglock"
)

const (
	// shortestEvery leaves a quarter of a second for clocks, pauses and the database.
	shortestEvery = time.Second

	// longestHold bounds how long a job cannot be run again by hand. Clocks that are further apart are broken.
	longestHold = time.Minute

	// releaseTimeout bounds how long a run waits for the release to be confirmed.
	releaseTimeout = 5 * time.Second
)

// Config tunes a job. The zero value is ready to use.
type Config struct {
	// Context is the parent of those that the function is given. When it ends, no further run begins. Cancel it to shut down, wait
	// for the context that cron.Cron.Stop returns, and close the client then. Default: context.Background().
	Context context.Context

	// Logger is told why a tick did not run, that a function failed, and that a lease was lost. Default: cron.DefaultLogger.
	Logger cron.Logger
}

// NewJob makes a job that calls f under the lock of that name, which follows the rules of lock names. It takes its leases from a
// client, which stays the caller's. every is the shortest time between two ticks of the job, at least a second. It sends nothing.
// The error matches pglock.ErrInvalidName or pglock.ErrInvalidOption.
//
// Run asks for the lock once, and calls f on its own goroutine if it is granted. f's context ends with Config.Context or with the lease:
// context.Cause then is a *pglock.LostError or pglock.ErrClosed, and f must stop what the lock protects. What f writes all the
// same is for the fence to refuse (pglock.Lease.Grant). Until f has returned the lease is renewed; then it is released, and Run
// returns when that is confirmed, after 5 s at the latest. A panic and runtime.Goexit release it and go on. Run is safe for
// concurrent use.
func NewJob(c *pglock.Client, name string, every time.Duration, f func(ctx context.Context, lease *pglock.Lease) error, cfg Config) (cron.Job, error) {
	switch {
	case c == nil:
		return nil, fmt.Errorf("%w: the client of job %q is nil", pglock.ErrInvalidOption, name)
	case f == nil:
		return nil, fmt.Errorf("%w: job %q has no function", pglock.ErrInvalidOption, name)
	case every < shortestEvery:
		return nil, fmt.Errorf("%w: job %q: %v between two ticks, at least %v is needed to tell one from the next", pglock.ErrInvalidOption, name, every, shortestEvery)
	}
	if _, err := pglock.NewElector(c, name, pglock.ElectorConfig{}); err != nil { // elections follow the rules of lock names, too
		return nil, err
	}
	if cfg.Context == nil {
		cfg.Context = context.Background()
	}
	if cfg.Logger == nil {
		cfg.Logger = cron.DefaultLogger
	}
	hold := min(every/2, longestHold)
	return &job{client: c, name: name, hold: hold, patience: hold / 2, f: f, cfg: cfg}, nil
}

// A job is what cron runs.
type job struct {
	client         *pglock.Client
	name           string
	hold, patience time.Duration
	f              func(context.Context, *pglock.Lease) error
	cfg            Config
}

// Run is for cron, which calls it at each tick.
func (j *job) Run() {
	lease, err := j.acquire()
	if errors.Is(err, pglock.ErrHeld) || j.cfg.Context.Err() != nil && err != nil {
		j.cfg.Logger.Info("skip", "job", j.name, "reason", err)
		return
	}
	if err != nil {
		j.cfg.Logger.Error(err, "a job was not run", "job", j.name)
		return
	}
	defer j.release(lease) // also when f panics
	// A child of the lease's context, so that the loss of the lease reaches f without a detour.
	ctx, cancel := context.WithCancelCause(lease.Context())
	defer cancel(nil)
	defer context.AfterFunc(j.cfg.Context, func() { cancel(context.Cause(j.cfg.Context)) })()
	if err := j.f(ctx, lease); err != nil {
		j.cfg.Logger.Error(err, "a job failed", "job", j.name)
	}
}

func (j *job) acquire() (*pglock.Lease, error) {
	// What is granted later than this may be somebody else's next tick.
	ctx, cancel := context.WithTimeoutCause(j.cfg.Context, j.patience,
		fmt.Errorf("no answer within %v: %w", j.patience, context.DeadlineExceeded))
	defer cancel()
	return j.client.TryAcquire(ctx, j.name, pglock.HoldAtLeast(j.hold))
}

// release ends a lease whatever became of the contexts.
func (j *job) release(lease *pglock.Lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(j.cfg.Context), releaseTimeout)
	defer cancel()
	if err := lease.Release(ctx); err != nil && !errors.Is(err, pglock.ErrReleased) { // f may have released it
		j.cfg.Logger.Error(err, "the lease of a job that has run", "job", j.name)
	}
}
