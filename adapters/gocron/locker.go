package gocronlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/fencedlock/fencedlock/pglock"
)

const (
	// shortestEvery leaves a quarter of a second for clocks, pauses and the database.
	shortestEvery = time.Second

	// longestHold bounds how long a job cannot be run again by hand. Clocks that are further apart are broken.
	longestHold = time.Minute

	// releaseTimeout bounds how long Unlock waits for the release to be confirmed.
	releaseTimeout = 5 * time.Second
)

// ErrUnnamed comes from Locker.Lock for a job without a name of its own.
var ErrUnnamed = errors.New("gocronlock: the job has no name of its own")

// A Locker is a gocron.Locker: see gocron.WithDistributedLocker and gocron.WithDistributedJobLocker. Safe for concurrent use.
type Locker struct {
	client         *pglock.Client
	hold, patience time.Duration
	log            *slog.Logger

	mu      sync.Mutex
	granted map[string]*lock // by the name of the job, until its Task has begun or gocron unlocks
}

// NewLocker makes a locker that takes its leases from a client, which stays the caller's: shut the scheduler down before closing
// it. every is the shortest time between two ticks of any job that the locker serves, at least a second. Jobs with longer ones
// tolerate larger differences between the replicas if they have a locker of their own. The logger gets what gocron tells nobody: a lease that is
// lost under a job, a tick that was skipped though nobody is known to run it. Nil is slog.Default(). It sends nothing. The error
// matches pglock.ErrInvalidOption.
func NewLocker(c *pglock.Client, every time.Duration, logger *slog.Logger) (*Locker, error) {
	if c == nil {
		return nil, fmt.Errorf("%w: the client of the locker is nil", pglock.ErrInvalidOption)
	}
	if every < shortestEvery {
		return nil, fmt.Errorf("%w: %v between two ticks, at least %v is needed to tell one from the next", pglock.ErrInvalidOption, every, shortestEvery)
	}
	if logger == nil {
		logger = slog.Default()
	}
	hold := min(every/2, longestHold)
	return &Locker{client: c, hold: hold, patience: hold / 2, log: logger, granted: map[string]*lock{}}, nil
}

// Lock is for gocron, which calls it before each run with the name of the job, and does not run the job on an error. It asks
// once, and blocks for half of the time for which the name is kept at the longest. The error matches pglock.ErrHeld where another replica has this tick;
// it is ErrUnnamed for a job without a name of its own; else it is what pglock.Client.TryAcquire answers, with
// context.DeadlineExceeded if the database did not answer in time.
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	lease, err := l.acquire(ctx, key)
	if err != nil {
		if !errors.Is(err, pglock.ErrHeld) && ctx.Err() == nil {
			l.log.Error("gocronlock: a job was not run", "job", key, "error", err)
		}
		return nil, err
	}
	k := &lock{locker: l, lease: lease}
	k.unwatch = context.AfterFunc(lease.Context(), func() {
		if ended := lease.Err(); !errors.Is(ended, pglock.ErrReleased) { // a Task may release it
			l.log.Error("gocronlock: the lease ended while its job ran", "job", key, "error", ended)
		}
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.granted[key] = k
	return k, nil
}

func (l *Locker) acquire(ctx context.Context, name string) (*pglock.Lease, error) {
	if isFunction(name) {
		return nil, fmt.Errorf("%w: %q is a Go function. Give it one with gocron.WithName, without a dot behind the last slash", ErrUnnamed, name)
	}
	// What is granted later than this may be somebody else's next tick.
	ctx, cancel := context.WithTimeoutCause(ctx, l.patience,
		fmt.Errorf("no answer within %v: %w", l.patience, context.DeadlineExceeded))
	defer cancel()
	return l.client.TryAcquire(ctx, name, pglock.HoldAtLeast(l.hold))
}

// isFunction says whether a name may be what package runtime calls a function: its package path, a dot, and more. In the last
// part of a package path a dot is escaped.
func isFunction(name string) bool {
	return strings.Contains(name[strings.LastIndexByte(name, '/')+1:], ".")
}

// take hands over the grant under which gocron runs a job: to one run only, so that one whose lease was lost before it began
// cannot share that of the next.
func (l *Locker) take(name string) *lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.granted[name]
	delete(l.granted, name)
	return k
}

// A lock is one grant, as gocron holds it.
type lock struct {
	locker  *Locker
	lease   *pglock.Lease
	unwatch func() bool
}

// Unlock releases the lease after the run, also when gocron has cancelled ctx, as it does when it shuts down or removes the job.
func (k *lock) Unlock(ctx context.Context) error {
	watched := k.unwatch()
	k.locker.forget(k)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	err := k.lease.Release(ctx)
	if errors.Is(err, pglock.ErrReleased) { // by the job itself
		return nil
	}
	if err != nil && watched { // gocron drops it
		k.locker.log.Error("gocronlock: the lease of a job that has run", "job", k.lease.Name(), "error", err)
	}
	return err
}

// forget drops a grant that no Task has taken.
func (l *Locker) forget(k *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.granted[k.lease.Name()] == k {
		delete(l.granted, k.lease.Name())
	}
}
