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
	if err != nil {
		err = fmt.Errorf("migration %v: %w", mig, err)
		if d.marked {
			err = &DirtyError{Table: r.quoted(), Version: mig.Target, From: d.from, Cause: err}
		}
	}
	e.Kind, e.Elapsed, e.Err = Finished, time.Since(begin), err
	r.g.tell(e)
	return err
}
