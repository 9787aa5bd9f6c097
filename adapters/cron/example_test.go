package cronlock_test

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/robfig/cron/v3"

	cronlock "github.com/fencedlock/fencedlock/adapters/cron"
	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/pglock"
)

// Each replica of a service runs this, until ctx ends. The report of an hour is written once, and no late writer can overwrite it.
func ExampleNewJob() {
	run := func(ctx context.Context, pool *pgxpool.Pool, locks *pglock.Client, report func(context.Context) (fence.Row, error)) error {
		reports := fence.Table{Name: "reports", Key: []string{"hour"}}
		job, err := cronlock.NewJob(locks, "hourly-report", time.Hour, func(ctx context.Context, lease *pglock.Lease) error {
			row, err := report(ctx)
			if err != nil {
				return err
			}
			return reports.Upsert(ctx, pool, lease.Grant(), row)
		}, cronlock.Config{Context: ctx})
		if err != nil {
			return err
		}
		scheduler := cron.New(cron.WithLocation(time.UTC), cron.WithChain(cron.Recover(cron.DefaultLogger)))
		if _, err := scheduler.AddJob("0 * * * *", job); err != nil {
			return err
		}
		scheduler.Start()
		<-ctx.Done()                                   // the jobs are told
		<-scheduler.Stop().Done()                      // and waited for
		return locks.Close(context.WithoutCancel(ctx)) // the client comes last
	}
	_ = run
}

// The time between two ticks says for how long a run keeps its name, so it must be known.
func ExampleNewJob_refused() {
	locks, err := pglock.Open("postgres://localhost/app", pglock.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close(context.Background()) //nolint:errcheck // it holds nothing
	_, err = cronlock.NewJob(locks, "report", 0, func(context.Context, *pglock.Lease) error { return nil }, cronlock.Config{})
	fmt.Println(err)
	// Output: pglock: invalid option: job "report": 0s between two ticks, at least 1s is needed to tell one from the next
}
