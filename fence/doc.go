// Package fence makes a stale lock holder harmless: the database refuses what it writes. It is used with the leases of
// package pglock, and knows nothing of them but their tokens.
//
// # Why
//
// A process that was paused, or cut off, cannot know that its lease has run out and that somebody else holds the lock now.
// It wakes up and writes. No lock service can prevent that; only the place where the write arrives can. So every grant has
// a [Token], greater than all tokens before, and what is written remembers the latest one that was there. An earlier token
// is refused with [ErrStale], in the same round trip, and nothing is written.
//
// # Which one
//
// A row fence ([Table]) protects rows one by one: each carries the token of its last writer, and each write is one statement.
//
//	err := invoices.Update(ctx, pool, lease.Grant(), fence.Row{"id": 7, "status": "paid"})
//
// A resource fence ([Tx], [Raise]) protects whatever belongs to a name: many tables, reads that a decision rests on, plain
// SQL. The transaction raises the fence of the name before it does anything else.
//
//	err := fence.Tx(ctx, pool, lease.Grant(), "ledger", func(tx pgx.Tx) error { ... })
//
// A held transaction ([HeldTx], [Hold]) needs neither tokens nor fences in the data, where that is beside the locks: while it
// is open nobody else is granted the lock.
//
//	err := fence.HeldTx(ctx, pool, lease.Grant(), func(ctx context.Context, tx pgx.Tx) error { ... })
//
// A protected table ([Protect], [StatedTx]) refuses every write of a transaction that has not stated a live token, whoever sends
// it: the fence is a trigger, so psql, another language and an old program are under it as well.
//
//	err := fence.StatedTx(ctx, pool, lease.Grant(), func(tx pgx.Tx) error { ... })
//
// These three send what is written first along with BEGIN and the fence, where it is known beforehand ([First]): one round trip for
// all of it, or two where the answers have a say, while a transaction without a fence takes three.
//
// All of them are there for database/sql too: [SQL], [TxSQL], [RaiseSQL], [HeldTxSQL], [HoldSQL], [StatedTxSQL].
//
// # What is promised
//
//   - A row that a later token has written or deleted is never written, deleted or brought back by an earlier one through
//     this package, as long as all its writers name the row by the same key (see [Table]). It holds at read committed,
//     repeatable read and serializable, whoever waits for whom, and for keys whose row is gone.
//   - Once a later grant's fenced transaction has committed, no earlier grant's transaction commits under the same resource.
//     An earlier one that is already open may still commit after the later grant was made, never after the later grant's
//     first fenced write: that one waits for it.
//   - A held transaction is committed before any later grant of its lock is made, or not at all. It keeps others away no
//     longer than its limits, should its process stop anywhere but in the middle of a COPY or a pipeline: see [Hold].
//   - No answer rests on an old snapshot: at repeatable read and serializable PostgreSQL's 40001 comes back instead.
//   - A stale write ends the lease that it was made under (see [Grant.OnStale]).
//
// # What is not
//
//   - Writes that do not go through a fence are not held up: plain SQL to a table that is not protected, another resource name.
//   - A write is refused once a later token has written, or waits for the fence, not once it was granted. Until then the earlier
//     holder's writes pass, and come before.
//   - A table that is written by two keys, by id here and by mail there: its rows are fenced while they are there, but a
//     delete by one key does not hold up an insert by the other.
//   - Rows that a foreign key deletes or changes along with others (ON DELETE or ON UPDATE CASCADE) leave no token behind, and so
//     an earlier one may insert them again. [Protect] refuses that.
//   - A view whose rows PostgreSQL cannot lock is not fenced: see [Table].
//   - A fenced delete that finds no row leaves nothing behind, so an earlier token may insert that row afterwards.
//   - Row fences compare tokens whatever lock they come from. Protect a row by one lock; resources check that.
//
// # Deadlocks and order
//
// Fences are row locks, held to the end of the transaction. One call takes its own in order: several resources ([Also]) by name,
// several rows ([Table.UpdateRows] and its like) by key. Transactions that take more by several calls must take them in one
// order, for instance resources first and by name, then rows by table and key; otherwise PostgreSQL ends one of them with
// 40P01, which comes back wrapped. Long transactions under a fence make later grants wait. A new transaction of the same grant is let in
// beside those that are open, but not while a later grant waits for them (which is seen where the lock lives in this database).
//
// # Poolers
//
// Everything works behind a pooler in transaction mode, with pgx's default settings. Statements are prepared only on connections
// that lead to the server itself, which is found out by asking, since planning one takes longer than running it. Statements of
// your own are sent as the connection's setting says, and those of [First] are your own.
//
// # Where it is installed
//
// The fences live beside the data: migrations.Up, in the database that is written to, which need not be the one of the locks.
// The role that writes needs rights on its own tables and what grant_locker gives; it can neither read the fences nor lower
// them. There is one row for each named resource, and one for each row deleted through a fence until it is inserted again. Where they
// come and go by the million, pglock.Client.PruneFences forgets those that are old and lets nothing in that they kept out.
package fence
