package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jonboulle/clockwork"

	gocronlock "github.com/fencedlock/fencedlock/adapters/gocron"
	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/pglock"
)

const (
	jobName   = "count"
	tickEvery = 3 * time.Second // short, to see several
	crontab   = "*/3 * * * * *"
)

// serve is what each replica does, word for word.
func serve(ctx context.Context, name string, clock clockwork.Clock, pool *pgxpool.Pool) (err error) {
	locks, err := pglock.New(pool, pglock.Config{Owner: name})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeLocks(locks)) }()
	locker, err := gocronlock.NewLocker(locks, tickEvery, nil)
	if err != nil {
		return err
	}
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker), gocron.WithClock(clock))
	if err != nil {
		return err
	}
	job := locker.Task(jobName, func(ctx context.Context, lease *pglock.Lease) error {
		return count(ctx, name, clock.Now(), pool, lease.Grant())
	})
	if _, err := scheduler.NewJob(gocron.CronJob(crontab, true), job, gocron.WithName(jobName)); err != nil {
		return err
	}
	scheduler.Start()
	say("is ready")
	<-ctx.Done()
	return errors.Join(scheduler.Shutdown(), context.Cause(ctx))
}

// count is the job: it writes down that it has run.
func count(ctx context.Context, name string, now time.Time, pool *pgxpool.Pool, grant fence.Grant) error {
	err := fence.Tx(ctx, pool, grant, "runs", func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO runs (tick, replica, token) VALUES ($1, $2, $3)`, tickAt(now), name, grant.Token)
		return err
	})
	if err != nil {
		say("could not count: %v", err)
		return err
	}
	say("has run the job at %s by its clock, token %d", now.Format("05.000"), grant.Token)
	return nil
}

// serveUnlocked is what a replica does that knows of no others.
func serveUnlocked(ctx context.Context, name string, clock clockwork.Clock, pool *pgxpool.Pool) error {
	scheduler, err := gocron.NewScheduler(gocron.WithClock(clock))
	if err != nil {
		return err
	}
	_, err = scheduler.NewJob(gocron.CronJob(crontab, true), gocron.NewTask(func(ctx context.Context) error {
		now := clock.Now()
		_, err := pool.Exec(ctx, `INSERT INTO runs (tick, replica, token) VALUES ($1, $2, 0)`, tickAt(now), name)
		if err == nil {
			say("has run the job at %s by its clock", now.Format("05.000"))
		}
		return err
	}))
	if err != nil {
		return err
	}
	scheduler.Start()
	say("is ready")
	<-ctx.Done()
	return errors.Join(scheduler.Shutdown(), context.Cause(ctx))
}

// tickAt numbers the ticks. A timer may go off a little before the clock gets there.
func tickAt(now time.Time) int64 { return now.Add(100*time.Millisecond).UnixNano() / int64(tickEvery) }

// A skewedClock is off by as much all the time.
type skewedClock struct {
	clockwork.Clock
	by time.Duration
}

func (c skewedClock) Now() time.Time { return c.Clock.Now().Add(c.by) }

// closeLocks waits a second at most for the database to confirm; what it does not confirm ends with the TTL.
func closeLocks(locks *pglock.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return locks.Close(ctx)
}

// say tells the director what happens.
func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }
