// Package pglock is a lock service on the PostgreSQL that a service already has. A lock is granted as a lease: it lives for a
// TTL, the client renews it, and it ends by itself if the holder vanishes. Every grant carries a fencing token, with which
// package fence makes the database refuse the writes of a holder that has lost the lock and does not know it yet.
//
//	client, err := pglock.New(pool, pglock.Config{})
//	...
//	err = client.Do(ctx, "reports/nightly", func(ctx context.Context, l *pglock.Lease) error {
//		return invoices.Update(ctx, pool, l.Grant(), fence.Row{"id": 42, "total": 120}) // refused once a later holder has written
//	})
//
// The schema must be there: see package migrations.
//
// # What is guaranteed
//
// While every statement goes to one primary whose commits are not lost, and whose clock is not stepped forward by more than
// the margin (a tenth of the TTL, at least 50 ms):
//
//   - For one name (and slot, where several may hold it) the database never records two unexpired holders, nor one who holds it
//     alone beside anybody else. Only its clock decides; no clock of a client is ever
//     compared with it.
//   - The token of a grant is greater than that of every earlier grant of the name, and unique over all names: over releases,
//     expiries, deleted rows, restarts and clean-ups. Renewals and retries do not change it, losing tries use none up.
//   - A renewal extends only the grant that it belongs to. It never takes over, re-creates or revives one.
//   - The lease's context is cancelled, with the cause, before anyone else can be granted the lock, by the clocks of this
//     process and without an answer from the database.
//   - When a reply is lost, the outcome is settled by the id of the acquisition. Neither is it guessed, nor is a grant that
//     nobody knows of left behind for longer than one TTL.
//   - A release by a former holder never touches the present one.
//
// # What is not
//
//   - That two processes never believe to hold the lock at once. A process that is paused between a look at its lease and its
//     next write cannot know: the fence can.
//   - Effects outside the database, unless the system that has them checks the token.
//   - What no database can see: two servers that are both writable primaries, or a virtual machine resumed from a memory image.
//
// # Trust
//
// A holder trusts its lease until (the instant before the acquisition was first sent) + TTL − margin. A confirmed renewal moves
// that to (the instant before the renewal was sent) + TTL − margin. Both the monotonic and the wall clock are read, and either
// can end it: the monotonic clock stands still while a machine is suspended. A lapse is final: what the database answers
// afterwards changes nothing.
//
//	         granted            renewed every TTL/3          not confirmed until trust ends,
//	asking ───────────▶ held ◀───────────────────┐           or the database says so
//	   │                 │ └─────────────────────┘           ┌───────────▶ lost (LostError)
//	   │ HeldError, …    ├───────────────────────────────────┘
//	   ▼                 ├── Release ─▶ released (ErrReleased)
//	 no lease            └── Close ───▶ closed (ErrClosed)
//
// # Waiting
//
// Acquire and Do wait. The goroutines of one client queue up for a name, first come first served, and a release hands the lock to
// the next of them with the same commit. Between processes a release hands it to the one that has waited longest, with its own commit too; but whoever
// asks while it is free is granted it, and only [Fair] keeps an order in all cases. Waiting holds no transaction and no snapshot in the database, and its cost does not
// grow with the number of those who wait: see [Client.Acquire].
//
// # Kinds
//
// A name is either a lock, held alone or shared by readers ([Shared]), or a semaphore of n ([Permits]). Each reader and each permit
// has a slot, which is a lease like any other. [Client.AcquireAll] is granted several names at once, or none. [LockDelay] and
// [MaxHold] are about holders that crash and leases that are forgotten; [Client.Revoke] takes a lock away.
//
// # Leaders
//
// An [Elector] makes one of several nodes the leader: it is a candidate for a lock for as long as it runs, calls a function while it
// holds it, and releases it only when that has returned. Candidates wait in silence. What a leader writes goes through a
// fence, as everything that is written under a lease.
//
// # When things fail
//
//	a process that stalls         its lease lapses; its context ends as soon as it runs again; the fence refuses its writes
//	a crash                       others are granted the lock when the TTL is over
//	a cut or silent connection    renewals go over a new one until trust ends; acquisitions are settled by id
//	a busy pool                   nothing: the client has connections of its own
//	a restart, failover, restore  leases that survived go on; new grants are held back until every one that may have been lost
//	                              has run out (30 s unless migrations.Up was told otherwise)
//	PgBouncer, transaction mode   works; found out by itself. Waiters poll, unless Config.ListenURL leads around it
//	a waiter that dies            a release that hands the lock to it gives it 3 s to come; then the others are granted it
//	a listener that hears nothing waiters poll until it hears again
//	a stepped wall clock here     can end a lease too early, never too late
package pglock
