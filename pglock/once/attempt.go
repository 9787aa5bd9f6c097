package once

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/pglock"
)

const (
	// releaseTime bounds how long an attempt waits for the release of its lease to be confirmed.
	releaseTime = 5 * time.Second

	// changingHands is how long to wait where a lock is free and another is just now taking it.
	changingHands = 5 * time.Millisecond

	// heldBackPoll bounds a rest while new grants are held back: somebody may end that earlier.
	heldBackPoll = time.Second
)

// A work is what an attempt does. recorded says that its success is on record already.
type work func(ctx context.Context, l *pglock.Lease) (recorded bool, err error)

// attempt runs f if the occurrence is to be run. It looks before it asks for the lock: most duplicates come late, and those
// write nothing.
func (r *Runner) attempt(ctx context.Context, o occurrence, cfg config, f work) (err error) {
	if err := r.refuse(ctx, o, cfg); err != nil {
		return err
	}
	l, err := r.take(ctx, o, cfg)
	if err != nil {
		return err
	}
	var inTime bool
	// Deferred, so that it also runs when f panics. The release goes out whatever became of ctx.
	defer func() {
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
		defer cancel()
		released := l.Release(rctx)
		lost, isLost := errors.AsType[*pglock.LostError](released)
		switch {
		case released == nil, errors.Is(err, released), errors.Is(released, pglock.ErrReleased):
		case inTime && isLost && lost.Cause == pglock.Expired: // while the end was recorded
		default:
			err = errors.Join(err, released)
		}
	}()
	if l.Grant().Slot != 0 {
		return o.invalid("its lock is held alone: no Shared, no Permits")
	}
	fctx, cancel := context.WithCancelCause(l.Context())
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	verdict, err := r.start(fctx, o, l, cfg)
	switch {
	case err != nil:
		return err
	case verdict == "lost":
		return &pglock.LostError{Name: l.Name(), Token: l.Token(), Cause: pglock.Expired}
	case verdict == "elsewhere":
		if err := l.Renew(fctx); errors.Is(err, pglock.ErrLost) { // a failover has lost the grant
			return err
		}
		return fmt.Errorf("once: %v: %w: New takes the database that the client's locks are in", o, fence.ErrElsewhere)
	case verdict == "over":
		if err := r.refuse(ctx, o, cfg); err != nil {
			return err
		}
		return fmt.Errorf("once: %v: its record was pruned just now", o)
	}
	inTime, err = r.run(fctx, o, l, cfg, f)
	return err
}

// refuse is a *DuplicateError if the record says that f is not to run.
func (r *Runner) refuse(ctx context.Context, o occurrence, cfg config) error {
	found, err := r.read(ctx, o.job, &o.due, 1)
	switch {
	case err != nil:
		return err
	case len(found) == 0, cfg.retry && found[0].Outcome != Done:
		return nil
	}
	return &DuplicateError{found[0]}
}

// take acquires the lock of the occurrence. Who may not run it again has nothing to wait for, but that grants are held back, and that
// a holder begins.
func (r *Runner) take(ctx context.Context, o occurrence, cfg config) (*pglock.Lease, error) {
	if cfg.retry {
		l, err := r.locks.Acquire(ctx, o.lock(), cfg.lease...)
		held, ok := errors.AsType[*pglock.HeldError](err)
		switch {
		case !ok:
			return l, err
		case !held.Over:
			return nil, fmt.Errorf("%w (%w)", o.heldBy(held), err)
		}
		// Whoever held it is gone, and may have finished while this one waited. ctx is over.
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tryTime)
		defer cancel()
		if dup, ok := errors.AsType[*DuplicateError](r.refuse(rctx, o, cfg)); ok {
			err = fmt.Errorf("%w (%w)", dup, err)
		}
		return nil, err
	}
	for {
		l, err := r.locks.TryAcquire(ctx, o.lock(), cfg.lease...)
		held, isHeld := errors.AsType[*pglock.HeldError](err)
		back, isHeldBack := errors.AsType[*pglock.HeldBackError](err)
		var rest time.Duration
		switch {
		case isHeld && held.Remaining > 0:
			if err := r.refuse(ctx, o, cfg); err != nil { // the holder may be one who only looks
				return nil, err
			}
			if held.Over {
				return nil, err
			}
			rest = tryAgain // the holder has not begun, and may yet fail to: that would leave it to nobody
		case isHeld:
			rest = changingHands
		case isHeldBack:
			rest = min(back.Remaining, heldBackPoll) + changingHands
		default:
			return l, err
		}
		select {
		case <-time.After(rest):
		case <-ctx.Done():
			return nil, fmt.Errorf("once: %v: %w; last: %w", o, context.Cause(ctx), err)
		}
	}
}

// run runs f and puts its end on record, whichever that is. inTime says that the lease was held when f had returned, or that its transaction
// was committed, which is as good.
func (r *Runner) run(ctx context.Context, o occurrence, l *pglock.Lease, cfg config, f work) (inTime bool, err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		why := "runtime.Goexit was called"
		thrown := recover()
		if thrown != nil {
			why = fmt.Sprintf("panic: %v", thrown)
		}
		_ = r.end(ctx, o, l, Failed, why) // nobody is left to be told; without a record it is unfinished, which is no lie
		if thrown != nil {
			panic(thrown)
		}
	}()
	recorded, err := false, l.Err() // whoever is told late that it has begun may not be the only one any more
	if err == nil {
		recorded, err = f(ctx, l)
	}
	returned = true
	inTime = recorded || l.Valid()
	switch {
	case recorded:
		return inTime, nil
	case err == nil:
		return inTime, r.end(ctx, o, l, Done, "")
	}
	unrecorded := r.end(ctx, o, l, Failed, err.Error())
	switch {
	case !errors.Is(unrecorded, errDone):
	case cfg.inTx: // the answer to the commit was lost, and not the commit
		return true, nil
	default:
		unrecorded = fmt.Errorf("%w: %v has failed, and somebody has recorded that it is done", ErrNotRecorded, o)
	}
	return inTime, errors.Join(err, unrecorded)
}
