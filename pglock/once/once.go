package once

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/pglock"
)

// A Runner runs occurrences of jobs once. One for a process is enough; it has no state of its own and nothing to close. Safe for
// concurrent use, if its DB is.
type Runner struct {
	locks *pglock.Client
	db    fence.DB
	sql   statements
}

// New makes a Runner of a client and the database that its locks are in, where the records are: a *pgxpool.Pool, or what fence.SQL
// makes of a *sql.DB. Both stay the caller's. It sends nothing. The error is [ErrInvalid].
func New(locks *pglock.Client, db fence.DB) (*Runner, error) {
	if locks == nil || isNil(db) {
		return nil, fmt.Errorf("%w: a Runner needs a client and a database", ErrInvalid)
	}
	return &Runner{locks, db, statementsIn(locks.Schema())}, nil
}

// isNil also holds for an interface with a nil pointer in it.
func isNil(db any) bool {
	v := reflect.ValueOf(db)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// Run runs f for an occurrence of a job, unless it was run before: see the package for what that promises. due is the instant
// at which the schedule has it, the same for all who call, and never time.Now(). f gets the lease that it runs under, and a
// context that carries the values of ctx and ends with ctx or with the lease; when ctx ends, the lease is renewed until f has returned.
//
// It blocks while f runs, before that for a few round trips, after a restart or failover of the database for as long as new
// grants are held back, and while another has the lock and has not begun (it may fail to, or have crashed): most often for an instant, at
// most for 20 s or the TTL of its lease; ctx bounds what comes before f. With [Retry] it also waits while another runs the occurrence; if ctx ends while
// the lock is only kept (see [Lease]), it looks at the record once more, for 5 s at most. After f the
// end is recorded and the lease released, whatever became of ctx; that takes 20 s at most.
//
// If f has not run, the error is a [*DuplicateError] (it matches [ErrRunning] or [ErrRan]), [ErrInvalid], fence.ErrElsewhere if the Runner was given
// another database than that of the locks, pglock.ErrReadOnly if that one only reads, a *pglock.LostError if the lease was lost before
// f could begin, that of the acquisition (see
// pglock.Client.TryAcquire), or what the driver says, wrapped. It may be called again; if the record could not be begun
// within 15 s (a server that only reads is waited for as one that is away), or ctx ended meanwhile, it may be there all the same, and
// then counts as unfinished. If f has run, the error joins what there is of: f's own error; a *pglock.LostError if the lease was lost
// before f had returned; [ErrNotRecorded]; a *fence.StaleError if a later attempt has begun meanwhile, so that this one's end is not on
// record; pglock.ErrNotReleased. A panic or runtime.Goexit
// in f is recorded as a failure, frees the lock, and goes on.
func (r *Runner) Run(ctx context.Context, job string, due time.Time, f func(ctx context.Context, l *pglock.Lease) error, opts ...Option) error {
	o, cfg, err := check(job, due, opts)
	switch {
	case err != nil:
		return err
	case f == nil:
		return o.invalid("nothing to run")
	case len(cfg.held) > 0:
		return o.invalid("Held is for Tx")
	}
	return r.attempt(ctx, o, cfg, func(ctx context.Context, l *pglock.Lease) (recorded bool, err error) { return false, f(ctx, l) })
}
