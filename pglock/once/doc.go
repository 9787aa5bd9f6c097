// Package once runs a job once for each instant at which it is due, whichever replicas of a service try, and keeps a record of who
// ran it, when, and how it ended.
//
//	runs, err := once.New(locks, pool) // a *pglock.Client, and the database of its locks
//	...
//	err = runs.Run(ctx, "nightly-report", tick, func(ctx context.Context, l *pglock.Lease) error {
//		return report(ctx, tick)
//	})
//	if errors.Is(err, once.ErrRunning) || errors.Is(err, once.ErrRan) {
//		return nil // another replica's; err says whose, and since when
//	}
//
// An occurrence is a job's name and an instant. The instant is what the schedule says, the same in every replica, and never
// time.Now(): of that each replica has another. It is taken in UTC and whole microseconds, so zones and monotonic readings do not
// matter, and no clock is compared with it: replicas whose clocks differ by minutes try the same occurrence, and one of them runs it.
//
// # What is guaranteed
//
// While every statement goes to one primary whose commits are not lost:
//
//   - f runs at most once for an occurrence. That it begins is on record, durably, before it does. If it fails, panics or its
//     process dies, that is what the record says, and nobody runs it again.
//   - With [Retry] it runs at least once, as long as somebody calls: whatever has failed, or was not finished when the lease of its runner
//     was over, can be run again. Never two at a time, as far as leases go (see package pglock: a paused process cannot know that
//     its lease is over, and what it writes then is for a fence to refuse).
//   - With [Runner.Tx] what the job writes to the database of the locks is there exactly once if the occurrence is done, and not at all
//     otherwise: it is one transaction with the record.
//   - A runner that was paused for longer than its lease lasts changes nothing on the record of a later attempt: the database
//     compares their tokens.
//
// # What is not
//
//   - Exactly once for effects outside that transaction. Mail cannot be sent and recorded at once: choose at most or at least.
//   - Anything for an occurrence whose record was pruned, or lost in a failover: it can be run again.
//   - That an occurrence is run at all if nobody asks for it while there is a database. See [Runner.Missed] for catching up.
//
// # Records and locks
//
// Records are in the table occurrences of the lock schema. [Runner.Last] and [Runner.History] read those of a job; the view once
// has all, for whoever was given grant_auditor. The text of an error is kept there as well: let it hold no secrets.
//
//	          begun             f returned nil
//	not run ─────────▶ running ────────────────▶ done
//	   ▲                 │ │ └─────────────────▶ failed      by an error, a panic or runtime.Goexit
//	   │                 │ └───────────────────▶ unfinished  nobody has said how it ended, and its lease is over
//	   └─── with Retry, from failed and unfinished
//
// Each occurrence has a lock of its own, so that another one of the same job need not wait: take a lock by the job's name in f
// where they must not overlap. Its name is
//
//	fencedlock.once/2026-01-31T04:00:00.000000Z/nightly-report
//
// Names that begin with fencedlock.once/ are the library's: take none of them for a lock of yours. It is of 44 bytes and the job's name, which therefore has 200 at
// most.
//
// # Queues: River, asynq and others
//
// They need no adapter. A queue delivers at least once: a job comes again when its worker died, when its answer was lost, when it took longer
// than the queue would wait. In a worker, Run makes of that
//
//   - without Retry: at most one run for each job, whatever is delivered. What was not finished stays so, on record.
//   - with Retry: one success, and never two workers at it. A delivery that comes while another is at work waits for that one, within its ctx.
//   - with Tx and Retry: one effect in the database, however often it is delivered.
//
// The occurrence must be the same in all deliveries. A job of River keeps its ID and its CreatedAt; its ScheduledAt is set anew by each
// retry and snooze, so that is no instant of any schedule. Take "kind/ID" as the name, and CreatedAt as the instant. A periodic job that
// several clients may insert carries its tick in its arguments: then the kind is the name and the tick is the instant. A task of asynq
// has an ID (asynq.GetTaskID) and no instant: let the payload have one, or take a fixed one. See the example of a worker.
//
// # When things fail
//
//	f returns an error, panics    failed, with the text; the lock is free at once
//	the record cannot be begun    nobody has run it: the others wait for the lock, and one of them runs it
//	the process is killed         unfinished when the lease is over (15 s), whose lock is free then
//	the lease is lost before f    failed: f does not run
//	the lease is lost in f        f's context ends. What f answers is still recorded, unless another attempt has begun: fence.ErrStale
//	the end cannot be recorded    tried for 15 s under the lease; then ErrNotRecorded, and unfinished
//	the record is gone            it was pruned, or lost in a failover: ErrNotRecorded at once
//	a commit without an answer    Tx looks at the record: the success, or a failure
//	a restart of the database     Run waits until grants are no longer held back
//	the server only reads         tried for 15 s, since a failover may cure it; then pglock.ErrReadOnly, or ErrNotRecorded after f
package once
