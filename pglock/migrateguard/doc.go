// Package migrateguard lets any number of replicas of a service run its golang-migrate migrations when they start. One migrates;
// the others wait, look again, and find nothing to do.
//
//	//go:embed migrations/*.sql
//	var files embed.FS
//	...
//	src, err := iofs.New(files, "migrations")
//	...
//	guard, err := migrateguard.New(pool, src, migrateguard.Config{Logger: slog.Default()})
//	...
//	err = guard.Up(ctx) // nil: the database is at the last migration, whoever has brought it there
//
// The migrations, their order and the version table are golang-migrate's: any source of it will do, the table has its format, and a
// database goes from one to the other and back without a change. What is replaced is its driver for the database, since that
// waits in a blocking pg_advisory_lock: a waiting replica holds a snapshot there, and CREATE INDEX CONCURRENTLY of the one that
// migrates waits for that snapshot until PostgreSQL ends one of the two as a deadlock. (For the same reason an existing
// database.Driver cannot be wrapped: its connection is its own, and so are its statements.) All replicas have to go through a
// Guard: golang-migrate alone does not know of its lock.
//
// # Which lock
//
// By default a lease of package pglock, in the database that is migrated. It works through PgBouncer, and it ends by itself when
// its holder vanishes. Its schema is installed on the way, which needs the right to create it once; to install it with other
// settings, call migrations.Up before. Config.Session takes an advisory lock of the session instead, which needs no schema, and no pooler
// in between. Let all replicas take the same kind: a lease taken through a pooler and a session lock do not know of each other.
//
// There is one lock for each version table: two services that keep theirs in one table exclude each other, and two with
// tables or schemas of their own do not.
//
// # What is guaranteed
//
//   - Where nothing is pending, no lock is taken and nothing is written.
//   - What to run is decided under the lock, from the version that is read there. Two Guards never run the migrations of one
//     version table at the same time, while the connection is direct.
//   - A waiter holds no connection of the pool, no transaction and no snapshot. (With Config.Session it has one connection of its own.)
//   - Whoever has lost its lock neither begins the next migration nor writes the version: the version is written in a
//     transaction that commits only under the lock.
//   - The loss is told, even when all SQL has worked; and it is told whether that was so: see ErrMigrated.
//   - A version that a failure has left dirty is reported by everybody, at once, with the way out. Nobody forces it.
//
// # When things fail
//
//	a migration fails                  DirtyError, here and in every other replica; the lock is free at once
//	the process is killed              its backend ends within about a second, in the middle of its SQL; the lease within a TTL. Then:
//	                                   DirtyError in every other replica
//	its machine or network is gone     the same, after about 8 s (the server's TCP settings for the session)
//	its backend works on all the same  it holds a session lock. Whoever has the lease waits for that, too, and says so
//	the process is stopped             its SQL is waited for, and then its session, for about 10 s: whoever has the lease ends it. DirtyError
//	                                   if it was in a migration. When the process goes on: ErrLost. With Config.Session: it is waited for
//	the lease is lost                  the migration under way is finished, and not recorded; none begins after it
//	the connection breaks              in a migration: it is dirty. In the commit of its version: the version is read over another
//	                                   connection, and told as it is; if others were to follow, call again
//	a failover                         as where the connection breaks. What the new primary lacks, its version lacks as well: whoever comes
//	                                   next runs it there, with a lease once new grants are no longer held back. A DirtyError of before may
//	                                   speak of the old one: see Plan. A call that goes on behind a pooler stops, and says so
//	the network is silent              for the runner: until ctx ends, or TCP gives up; the call returns within a minute or so of that
//	ctx ends                           between two migrations: none begins after it. In one: it is cancelled, and the version is dirty
//	PgBouncer, transaction mode        works with the lease alone: a backend that works on after its runner is gone is not waited for, for
//	                                   longer than the lease lasts; nor is a process that was stopped just before it sent a file. Give the
//	                                   Guard a direct connection where there is one
//	PgBouncer, session mode            the same. It needs room for three connections of who migrates, and for two of each who waits: with
//	                                   less, the lease is not renewed, which is ErrLost
//	PgBouncer, statement mode          refused by PgBouncer, before the first migration
//
// # What is sent
//
// Each file goes to the server as it is, but for a byte order mark, in one message, as golang-migrate does it: several statements are one
// transaction, unless they say otherwise; one that must not be in a transaction, as CREATE INDEX CONCURRENTLY, has a file of its own. The
// session is that of the pool, with its hooks and its role's settings, statement_timeout included. Each file begins with the role
// and the search_path that these have set, and is read as UTF-8, whatever the one before, or the role, has set; other settings stay for
// those after it, in the same call. Behind a pooler, which lends the backend to other clients, none stays, unless it is lent before the
// Guard comes to that: SET LOCAL, in a transaction, is sure there. A file that cannot be read in full, that leaves a transaction open, or
// that copies from STDIN, is an error.
package migrateguard
