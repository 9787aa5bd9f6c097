package migrateguard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencedlock/fencedlock/migrations"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/fencedlock/fencedlock/pglock/advisory"
)

// idleTooLong is how long the session of a former runner may be idle before whoever has the lease ends it.
const idleTooLong = 5 * time.Second

// A runner is who may migrate: it has the lock, and the session that the SQL goes over.
type runner struct {
	g       *Guard
	state                  // read under the lock
	locks   *pglock.Client // nil with Config.Session
	lease   *pglock.Lease
	session *session
}

// hold takes all that keeps others out, and reads the state under it. After an error nothing is held.
func (r *runner) hold(ctx context.Context, w *wait) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, r.letGo(ctx, err))
		}
	}()
	if !r.g.cfg.Session {
		if err := r.takeLease(ctx, w); err != nil {
			return err
		}
	}
	if r.session == nil {
		if r.session, err = r.g.connect(ctx); err != nil {
			return err
		}
	}
	switch {
	case r.session.direct:
		err = r.lockSession(ctx, w)
	case r.g.cfg.Session:
		err = fmt.Errorf("%w: a pooler is in between. Use the lease (Config.Session false), or a direct connection", advisory.ErrPooler)
	default:
		r.g.cfg.Logger.Info("migrateguard: a pooler is in between: the lease alone keeps others out")
	}
	if err == nil {
		r.state, err = r.g.readState(ctx, r.session.conn, r.schema)
	}
	return err
}

// takeLease waits for the lease, and installs its schema where it is missing.
func (r *runner) takeLease(ctx context.Context, w *wait) (err error) {
	if r.locks, err = r.g.locks(); err != nil {
		return err
	}
	installed, err := r.installed(ctx)
	if err != nil {
		return err
	}
	err = pglock.ErrNotMigrated
	if installed { // the client would warn of it
		r.lease, err = r.locks.TryAcquire(ctx, r.lockName())
	}
	if errors.Is(err, pglock.ErrNotMigrated) {
		if err := r.g.install(ctx); err != nil {
			return orSession(err)
		}
		r.lease, err = r.locks.TryAcquire(ctx, r.lockName())
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pglock.ErrNotAllowed):
		return orSession(err)
	}
	r.hangUp(ctx) // whoever waits has no use for it
	waiting, cancel := w.begin(ctx)
	defer cancel()
	var reason error // who is in the way; nil if nobody was seen
	for {
		if errors.Is(err, pglock.ErrHeld) || errors.Is(err, pglock.ErrHeldBack) {
			reason = inTheWay(err)
			r.g.tell(w.event(reason))
		}
		switch cause := context.Cause(waiting); {
		case cause != nil && reason != nil:
			return w.gaveUp(waiting, reason)
		case cause != nil && !errors.Is(err, cause):
			return fmt.Errorf("%w: %w", cause, err)
		case cause != nil:
			return err
		}
		asking, cancel := context.WithTimeout(waiting, announceEvery)
		r.lease, err = r.locks.Acquire(asking, r.lockName())
		over := asking.Err() != nil
		cancel()
		if err == nil || !over {
			return err
		}
	}
}

// installed says whether the lease's tables are there: on the first start of all they are not.
func (r *runner) installed(ctx context.Context) (yes bool, err error) {
	err = r.session.conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
  WHERE n.nspname::text OPERATOR(pg_catalog.=) $1::text AND c.relname::text OPERATOR(pg_catalog.=) 'leases')`, r.g.cfg.Lease.Schema).Scan(&yes)
	return yes, err
}

// orSession offers what needs no schema to those who may not have it.
func orSession(err error) error {
	if errors.Is(err, migrations.ErrPrivilege) || errors.Is(err, pglock.ErrNotAllowed) {
		return fmt.Errorf("the lease needs its schema: %w. Or do without: Config.Session takes a session lock", err)
	}
	return err
}

// install makes the lease's schema.
func (g *Guard) install(ctx context.Context) error {
	pool, err := g.idlePool()
	if err != nil {
		return err
	}
	defer pool.Close()
	return migrations.Up(ctx, pool, migrations.Schema(g.cfg.Lease.Schema))
}

// lockSession waits for the session lock. Beside a lease it is free, unless the backend of a former runner still works.
func (r *runner) lockSession(ctx context.Context, w *wait) error {
	if got, err := r.session.tryLock(ctx, r.key()); err != nil || got {
		return err
	}
	waiting, cancel := w.begin(ctx)
	defer cancel()
	waiting, lose := context.WithCancelCause(waiting)
	defer lose(nil)
	if r.lease != nil {
		defer context.AfterFunc(r.lease.Context(), func() { lose(r.lost(r.lease.Err())) })()
	}
	var reason error
	var told time.Time
	for tries := 0; ; tries++ {
		got, err := r.session.tryLock(waiting, r.key())
		if err == nil && got {
			return nil
		}
		if err == nil && time.Since(told) > announceEvery {
			if reason, err = r.backend(waiting); err == nil && reason != nil {
				told = time.Now()
				r.g.tell(w.event(reason))
			}
		}
		switch cause := context.Cause(waiting); {
		case errors.Is(cause, ErrLost):
			return cause
		case cause != nil && reason != nil:
			return w.gaveUp(waiting, reason)
		case cause != nil:
			return cause
		case err != nil:
			return err
		}
		pause(waiting, tries)
	}
}

// backend says whose session holds the lock; nil for nobody any more.
func (r *runner) backend(ctx context.Context) (error, error) {
	holders, err := advisory.List(ctx, r.session.conn, r.key())
	if err != nil || len(holders) == 0 {
		return nil, err
	}
	held := &advisory.HeldError{Key: r.key(), Holders: holders}
	if r.lease == nil {
		return held, nil
	}
	if err := r.endIdle(ctx, holders[0].PID); err != nil {
		return nil, err
	}
	return fmt.Errorf("the runner is gone, or has lost its lease, and its backend %d still works: %w", holders[0].PID, held), nil
}

// endIdle ends the session of a former runner that sends nothing any more, as that of a process which is stopped: it would be waited for as
// long as that is. Where this role may neither see nor end it, it is waited for.
func (r *runner) endIdle(ctx context.Context, pid int32) error {
	_, err := r.session.conn.Exec(ctx, `SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity
  WHERE pid OPERATOR(pg_catalog.=) $1::int AND state OPERATOR(pg_catalog.~) '^idle'
    AND state_change OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) $2::interval)`,
		pid, idleTooLong)
	if sqlState(err) == "42501" {
		return nil
	}
	return err
}

// lost says that the lock was lost, and why.
func (r *runner) lost(why error) error {
	return fmt.Errorf("%w: that of version table %s: %w", ErrLost, r.quoted(), why)
}

// finish lets go, and says what became of the work and of the lock.
func (r *runner) finish(ctx context.Context, worked error) error {
	let := r.letGo(ctx, worked)
	switch {
	case let == nil:
		return worked
	case worked != nil:
		return errors.Join(worked, let)
	}
	return fmt.Errorf("%w: %w", ErrMigrated, let)
}

// hangUp closes the session, if there is one.
func (r *runner) hangUp(ctx context.Context) {
	if r.session != nil {
		r.session.hangUp(ctx)
		r.session = nil
	}
}

// letGo releases in the order that lets the next runner find everything free, and tells what of it is not known already.
func (r *runner) letGo(ctx context.Context, worked error) error {
	var errs []error
	if r.session != nil {
		err := r.session.unlock(ctx)
		if err != nil && r.lease == nil && !errors.Is(worked, ErrLost) { // beside a lease it is for the time after the runner
			errs = append(errs, r.lost(err))
		}
		r.hangUp(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockTimeout)
	defer cancel()
	if r.lease != nil {
		err := r.lease.Release(ctx)
		if errors.Is(err, pglock.ErrLost) {
			err = r.lost(err)
		}
		if err != nil && !(errors.Is(err, ErrLost) && errors.Is(worked, ErrLost)) {
			errs = append(errs, err)
		}
	}
	if r.locks != nil {
		if err := r.locks.Close(ctx); err != nil && len(errs) == 0 {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
