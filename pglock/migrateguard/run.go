package migrateguard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golang-migrate/migrate/v4"
)

// work does a job, from what is read under the lock.
func (r *runner) work(ctx context.Context, j job) error {
	if err := errors.Join(r.refuse(), context.Cause(ctx)); err != nil {
		return err
	}
	if j.route == nil {
		return j.act(ctx, r)
	}
	if r.dirty {
		if err := known(r.g.src, r.version); err != nil { // what came before it only the other program knows
			return &DirtyError{Table: r.quoted(), Version: r.version, From: -1, Cause: err}
		}
		return &DirtyError{Table: r.quoted(), Version: r.version, From: other(r.g.src, r.version)}
	}
	list, err := r.g.plan(j.route, r.version)
	if err != nil {
		return err
	}
	d := &driver{runner: r, ctx: ctx}
	m, err := migrate.NewWithInstance("source", r.g.src, "pgx", d)
	if err != nil {
		return err
	}
	for i, mig := range list {
		if err := r.step(ctx, m, d, mig, i+1, len(list)); err != nil {
			return err
		}
	}
	return nil
}

// step runs one migration. One at a time, because after a failure golang-migrate leaves a goroutine behind for each file
// that it has read ahead.
func (r *runner) step(ctx context.Context, m *migrate.Migrate, d *driver, mig Migration, k, n int) error {
	if err := context.Cause(ctx); err != nil { // that the lock is held, record sees to
		return fmt.Errorf("stopped before migration %d of %d, %v: %w", k, n, mig, err)
	}
	e := Event{Kind: Started, Migration: mig, K: k, N: n}
	r.g.tell(e)
	begin := time.Now()
	direction := 1
	if mig.Down {
		direction = -1
	}
	err := m.Steps(direction)
	var broken error // what broke after the migration was recorded
	if err != nil {
		if err = d.explain(ctx, mig, err); errors.Is(err, errRecorded) {
			broken, err = err, nil
		}
	}
	e.Kind, e.Elapsed, e.Err = Finished, time.Since(begin), err
	r.g.tell(e)
	if broken != nil && k < n {
		return fmt.Errorf("stopped after migration %d of %d, %w; call again for those that are left", k, n, broken)
	}
	return err
}

// errRecorded: the migration has run and is recorded, though the answer to that was lost.
var errRecorded = errors.New("which is recorded")

// explain says what became of a migration that did not end in order.
func (d *driver) explain(ctx context.Context, mig Migration, err error) error {
	err = fmt.Errorf("migration %v: %w", mig, err)
	dirty := d.marked
	if d.unsure {
		s, lookErr := d.lookUp(ctx)
		if lookErr != nil {
			return fmt.Errorf("%w; whether it came to pass could not be found out (%w): call again, or see Plan", err, lookErr)
		}
		dirty = s.dirty && s.version == mig.Target
		same := s.server == d.server // where others may have gone on from it; another may have been behind, and only the version itself shows it
		if d.marked && !dirty && (s.version == mig.Target || same && s.version != d.from) {
			return fmt.Errorf("%w: %w", errRecorded, err)
		}
		if !same && !dirty {
			if !errors.Is(err, errOtherServer) {
				err = fmt.Errorf("%w; %w", err, errOtherServer)
			}
			return fmt.Errorf("%w: it is at version %d: call again, or see Plan", err, s.version)
		}
	}
	if dirty {
		return &DirtyError{Table: d.quoted(), Version: mig.Target, From: d.from, Cause: err}
	}
	return err
}
