package gocronlock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	gocronlock "github.com/fencedlock/fencedlock/adapters/gocron"
	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/pglock"
)

// Each replica of a service runs this. The report of an hour is written once, and no late writer can overwrite it.
func ExampleLocker_Task() {
	schedule := func(pool *pgxpool.Pool, locks *pglock.Client, report func(context.Context) (fence.Row, error)) (gocron.Scheduler, error) {
		locker, err := gocronlock.NewLocker(locks, time.Hour, nil)
		if err != nil {
			return nil, err
		}
		scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
		if err != nil {
			return nil, err
		}
		reports := fence.Table{Name: "reports", Key: []string{"hour"}}
		_, err = scheduler.NewJob(
			gocron.CronJob("0 * * * *", false),
			locker.Task("hourly-report", func(ctx context.Context, lease *pglock.Lease) error {
				row, err := report(ctx)
				if err != nil {
					return err
				}
				return reports.Upsert(ctx, pool, lease.Grant(), row)
			}),
			gocron.WithName("hourly-report"),
			gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, job string, err error) {
				if errors.Is(err, pglock.ErrHeld) {
					slog.Debug("another replica runs it", "job", job, "reason", err)
				}
			})))
		if err != nil {
			return nil, err
		}
		scheduler.Start()
		return scheduler, nil // Shutdown comes before the Close of locks
	}
	_ = schedule
}

// Jobs on the leader alone. They are told when it leads no more, and waited for.
func ExampleElector() {
	lead := func(ctx context.Context, locks *pglock.Client, jobs func(gocron.Scheduler) error) error {
		election, err := pglock.NewElector(locks, "scheduler", pglock.ElectorConfig{})
		if err != nil {
			return err
		}
		elector, err := gocronlock.NewElector(election)
		if err != nil {
			return err
		}
		scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
		if err != nil {
			return err
		}
		if err := jobs(scheduler); err != nil {
			return err
		}
		err = election.Run(ctx, func(ctx context.Context, _ *pglock.Lease) error {
			scheduler.Start()
			<-ctx.Done()
			return scheduler.StopJobs()
		})
		return errors.Join(err, scheduler.Shutdown())
	}
	_ = lead
}

// A name of its own is what keeps a job apart from others, and the same on all replicas.
func ExampleLocker_unnamed() {
	locks, err := pglock.Open("postgres://localhost/app", pglock.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close(context.Background()) //nolint:errcheck // it holds nothing
	locker, err := gocronlock.NewLocker(locks, time.Minute, slog.New(slog.DiscardHandler))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = locker.Lock(context.Background(), "main.cleanUp") // as gocron does for a job without one
	fmt.Println(errors.Is(err, gocronlock.ErrUnnamed))
	// Output: true
}
