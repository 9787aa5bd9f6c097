package once_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/pglock"
	"github.com/fencedlock/fencedlock/pglock/once"
)

// Every replica has this schedule; one of them makes the report of each night.
func ExampleRunner_Run() {
	nightly := func(ctx context.Context, locks *pglock.Client, pool *pgxpool.Pool, tick time.Time, report func(context.Context) error) error {
		runs, err := once.New(locks, pool)
		if err != nil {
			return err
		}
		err = runs.Run(ctx, "nightly-report", tick, func(ctx context.Context, _ *pglock.Lease) error { return report(ctx) })
		if errors.Is(err, once.ErrRunning) || errors.Is(err, once.ErrRan) {
			return nil // another replica's
		}
		return err
	}
	_ = nightly
}

// Interest is paid exactly once for each day, and for the days that were missed as well.
func ExampleRunner_Missed() {
	payInterest := func(ctx context.Context, runs *once.Runner, pool *pgxpool.Pool, next func(time.Time) time.Time) error {
		for {
			missed, err := runs.Missed(ctx, "interest", next, time.Now(), once.All)
			if err != nil || len(missed) == 0 {
				return err
			}
			for _, day := range missed {
				err := runs.Tx(ctx, pool, "interest", day, func(ctx context.Context, tx pgx.Tx) error {
					_, err := tx.Exec(ctx, `UPDATE accounts SET balance = balance * 1.0001`)
					return err
				})
				if err != nil && !errors.Is(err, once.ErrRan) && !errors.Is(err, once.ErrRunning) {
					return err
				}
			}
		}
	}
	_ = payInterest
}

// What the answers mean to the worker of a queue.
func ExampleDuplicateError() {
	answer := func(err error) string {
		dup, ok := errors.AsType[*once.DuplicateError](err)
		switch {
		case err == nil:
			return "done: acknowledge"
		case ok && dup.Outcome == once.Done:
			return "delivered twice: acknowledge, " + dup.Owner + " has done it"
		case ok && dup.Outcome == once.Running:
			return dup.Owner + " is at it: ask to be called again"
		case ok:
			return "it has " + string(dup.Outcome) + ", and is not to be run again: somebody must look"
		default:
			return "failed: ask to be called again"
		}
	}
	fmt.Println(answer(nil))
	fmt.Println(answer(&once.DuplicateError{Record: once.Record{Outcome: once.Done, Owner: "worker-7"}}))
	fmt.Println(answer(&once.DuplicateError{Record: once.Record{Outcome: once.Running, Owner: "worker-7"}}))
	// Output:
	// done: acknowledge
	// delivered twice: acknowledge, worker-7 has done it
	// worker-7 is at it: ask to be called again
}
