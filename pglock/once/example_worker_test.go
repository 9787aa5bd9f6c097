package once_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/pglock/once"
)

// A Job is what a queue hands to a worker: river.Job[Welcome] has all of it. ID and CreatedAt are the same in every delivery.
type Job[T any] struct {
	ID        int64
	CreatedAt time.Time
	Args      T
}

// Welcome is the job of crediting a new customer.
type Welcome struct{ Customer int64 }

// A WelcomeWorker has the shape of a worker of River. The queue may deliver a job twice, to two workers at once even, after it took
// one of them for dead.
type WelcomeWorker struct {
	Runs *once.Runner
	Pool *pgxpool.Pool
}

// Work credits the customer exactly once, however often it is called for the job. An error asks the queue to deliver it again,
// which Retry lets run again.
func (w *WelcomeWorker) Work(ctx context.Context, job *Job[Welcome]) error {
	err := w.Runs.Tx(ctx, w.Pool, fmt.Sprintf("welcome/%d", job.ID), job.CreatedAt, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE customers SET credit = credit + 10 WHERE id = $1`, job.Args.Customer)
		return err
	}, once.Retry())
	if errors.Is(err, once.ErrRan) {
		return nil // another delivery has done it
	}
	return err
}

// A worker of a queue needs no adapter.
func Example_worker() {
	start := func(runs *once.Runner, pool *pgxpool.Pool) *WelcomeWorker {
		return &WelcomeWorker{Runs: runs, Pool: pool} // river.AddWorker(workers, …)
	}
	_ = start
}
