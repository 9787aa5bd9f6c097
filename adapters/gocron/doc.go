// Package gocronlock runs each tick of a [gocron] job on one replica of a service, under a lease of package pglock.
//
//	locker, err := gocronlock.NewLocker(locks, time.Minute, nil) // no job of this scheduler ticks more often
//	...
//	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//	...
//	_, err = scheduler.NewJob(
//		gocron.CronJob("0 * * * *", false),
//		locker.Task("hourly-report", func(ctx context.Context, lease *pglock.Lease) error {
//			return reports.Upsert(ctx, pool, lease.Grant(), row) // refused once a later run has written
//		}),
//		gocron.WithName("hourly-report"))
//
// Every replica runs this. At a tick all of them ask for the lock that is named as the job; one is granted it and runs the job,
// the others skip the tick. The lease is renewed for as long as the job runs, however long that is: neither another replica nor
// the next tick on the same one runs it meanwhile.
//
// # Clocks
//
// A job may be over before a replica whose clock is behind has begun to ask. So a run keeps its name from others for half of the
// time between two ticks, a minute at most, even when the job ends earlier ([pglock.HoldAtLeast]). An answer of the database that
// takes longer than half of that counts for nothing. While all replicas ask within half of the time for which a name is kept of one
// another, clocks, pauses and the database taken together, no tick runs twice, and none is lost while one replica lives and
// reaches the database: but for those that come due while the job still runs, or the lease of a replica that crashed while it ran. For jobs that tick each minute that is 15 s, and for those that tick each second a quarter of one.
//
// The ticks of a job must be at the same instants on all replicas. Those of gocron.CronJob, DailyJob and their like are. Those of
// gocron.DurationJob are if gocron.WithStartAt says so; without it they count from the start of each process, and a job runs more
// often than it should.
//
// # When a tick does not run
//
// What Locker.Lock answers comes to the listener gocron.AfterLockError. If it matches [pglock.ErrHeld], another replica runs this
// tick, has run it, or still runs the one before: all is well. Any other error says that this replica could not know: the database
// was not reached or did not answer in time, or holds grants back after a restart or failover ([pglock.ErrHeldBack]). The job does not run then. If no replica
// can know, the tick is lost. Such errors are logged too, since gocron itself drops them.
//
// # Losing the lease
//
// A lease is lost when the database cannot be reached for the time of its TTL, for one. The context of a [Locker.Task] ends then,
// before another replica can run the job. A function that was given to gocron.NewTask cannot be told: gocron passes nothing from
// its locker to its jobs, and goes on. It is logged. Jobs for which that matters use Locker.Task.
//
// A replica that crashes while it runs a job is followed at the first tick after the TTL of its lease, 15 s unless
// pglock.Config.TTL says otherwise, and after the time for which the name is kept.
//
// # Names
//
// A job needs a name of its own, by gocron.WithName. Without one gocron hands over the name of the Go function, which is another
// after the next refactoring, and the same for all that one function makes: it is refused with [ErrUnnamed].
// A name with a dot behind its last slash is taken for one. The name is that of the lock: jobs of one name exclude each other, in
// whichever program of the same database they are.
//
// # Singletons and limits
//
// Both of gocron's modes work. Those that wait, gocron.LimitModeWait, run ticks later than they are due; a late run is a
// run as any other, and keeps other replicas from the tick that is due meanwhile.
//
// If the scheduler has a gocron.WithDistributedElector too, gocron asks only that and no locker. A Locker.Task refuses to run then.
//
// [gocron]: https://github.com/go-co-op/gocron
package gocronlock
