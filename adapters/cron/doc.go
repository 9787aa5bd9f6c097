// Package cronlock runs each tick of a [robfig/cron] job on one replica of a service, under a lease of package pglock.
//
//	job, err := cronlock.NewJob(locks, "hourly-report", time.Hour, func(ctx context.Context, lease *pglock.Lease) error {
//		return reports.Upsert(ctx, pool, lease.Grant(), row) // refused once a later run has written
//	}, cronlock.Config{})
//	...
//	_, err = scheduler.AddJob("0 * * * *", job)
//
// Every replica runs this. At a tick all of them ask for the lock of that name; one is granted it and runs the function, the
// others skip the tick. The lease is renewed for as long as the function runs, however long that is: neither another replica
// nor the next tick on the same one runs it meanwhile.
//
// # Clocks
//
// A run may be over before a replica whose clock is behind has begun to ask. So it keeps the name from others for half of the
// time between two ticks, a minute at most, even when the function returns earlier ([pglock.HoldAtLeast]). An answer of the
// database that takes longer than half of that counts for nothing. While all replicas ask within half of the time for which the name is kept of one
// another, clocks, pauses and the database taken together, no tick runs twice, and none is lost while one replica lives and
// reaches the database: but for those that come due while the job still runs, or the lease of a replica that crashed while it ran. For a job that ticks each minute that is 15 s, and for one that ticks each second a quarter of one.
//
// The ticks must be at the same instants on all replicas. Those of cron expressions are, in one time zone. Those of
// "@every 1m" are not: they count from the start of each process, and a job runs more often than it should.
//
// # When a tick does not run
//
// Where another replica runs it, has run it, or still runs the one before, the logger is told "skip", as cron.SkipIfStillRunning
// does. Where this replica could not know, it is told an error: the database was not reached or did not answer in time, or
// holds grants back after a restart or failover ([pglock.ErrHeldBack]). The function does not run then. If no replica can know, the tick is lost.
//
// # Losing the lease
//
// A lease is lost when the database cannot be reached for the time of its TTL, for one. The function's context ends then, before
// another replica can run the job.
//
// A replica that crashes while it runs a job is followed at the first tick after the TTL of its lease, 15 s unless
// pglock.Config.TTL says otherwise, and after the time for which the name is kept.
//
// # Wrappers
//
// A job of this package goes into chains as any other: cron.Recover sees its panics, after the lock was released. It needs neither
// cron.SkipIfStillRunning nor cron.DelayIfStillRunning.
//
// [robfig/cron]: https://github.com/robfig/cron
package cronlock
