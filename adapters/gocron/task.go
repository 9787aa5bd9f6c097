package gocronlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-co-op/gocron/v2"

	"github.com/fencedlock/fencedlock/pglock"
)

// ErrNoLock is the error of a Task that gocron has begun without the lock of its job.
var ErrNoLock = errors.New("gocronlock: the job runs without its lock")

// Task is the task of a job that is to know its lease. The job must have that name (gocron.WithName) and this locker. f's
// context ends with the job's, when the scheduler shuts down, say, or with the lease: context.Cause then is a
// *pglock.LostError or pglock.ErrClosed, and f must stop what the lock protects. What f writes all the same is for the fence to
// refuse (pglock.Lease.Grant).
//
// Until f has returned the lease is renewed. gocron is told the error of f, joined with that of a lease that ended before: see
// gocron.AfterJobRunsWithError. A panic and runtime.Goexit go on to gocron, which unlocks first. Where gocron has not asked the
// locker, because the names differ, say, f does not run: gocron is told ErrNoLock, and it is logged. A nil f panics.
func (l *Locker) Task(name string, f func(ctx context.Context, lease *pglock.Lease) error) gocron.Task {
	if f == nil {
		panic("gocronlock: Task without a function")
	}
	return gocron.NewTask(func(ctx context.Context) error {
		k := l.take(name)
		if k == nil {
			err := fmt.Errorf("%w: give it gocron.WithName(%q) and the locker that made the task, and the scheduler no elector", ErrNoLock, name)
			l.log.Error("gocronlock: a job was not run", "job", name, "error", err)
			return err
		}
		return run(ctx, k.lease, f)
	})
}

// run calls f with a context that ends with ctx or with the lease.
func run(ctx context.Context, lease *pglock.Lease, f func(context.Context, *pglock.Lease) error) error {
	// A child of the lease's context, so that the loss of the lease reaches f without a detour.
	fctx, cancel := context.WithCancelCause(lease.Context())
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	err := f(fctx, lease)
	if ended := lease.Err(); ended != nil && !errors.Is(ended, pglock.ErrReleased) && !errors.Is(err, ended) {
		err = errors.Join(err, ended)
	}
	return err
}
