// Package advisory makes PostgreSQL's advisory locks safe to use: locks that the server keeps in memory, that cost no table and no
// commit, and that end with the transaction or the session that took them.
//
// # Which one
//
//	a lock to the end of a transaction that you have    InTx(tx).TryAcquire, InTx(tx).Acquire; InSQLTx for database/sql
//	a lock for longer than a transaction                Client.Do, Client.TryAcquire, Client.Acquire
//	a lock with a fencing token, or behind a pooler     package pglock
//
// What happens in one transaction is best locked by it: the lock cannot be lost before the work that it protects. A session lock
// has a connection of its own, and whoever holds it learns of the end of that connection from a context, after the fact.
//
//	locks, err := advisory.New(pool, advisory.Config{})
//	...
//	err = locks.Do(ctx, advisory.Name("reports/nightly"), func(ctx context.Context) error {
//		return report(ctx) // ctx ends when the session, and with it the lock, is gone
//	})
//
// # What is guaranteed
//
//   - While its session lives, nobody else holds the lock, or only those who share it, in that database of that server. (Locks of two databases, and of a
//     primary and its standby, have nothing to do with each other; standbys are refused for that reason.)
//   - A call that returns an error leaves no lock behind: not when its ctx ends in the middle, not when the reply is lost. The
//     connection is closed then, and the server frees the lock when it sees that: at once, as a rule.
//   - A transaction whose call was not granted goes on as if nothing had happened, its settings unchanged.
//   - Waiting asks again and again, and holds neither a snapshot nor a place in the lock table's queue meanwhile: vacuum and CREATE INDEX
//     CONCURRENTLY go on. So it is not fair: who asks at the right moment gets it. (A transaction of yours that waits at
//     repeatable read or serializable holds its own snapshot.)
//   - The context of a session lock ends, with a *LostError, when the session is gone: at once when the server or the network
//     says so, else 6 s after the last answer (three times Config.CheckEvery).
//
// # What is not
//
//   - That a holder has stopped when the next one begins. There is no token that could refuse its late writes. Where the network
//     is cut, the server waits longer before it gives up (8 s) than the holder does (6 s): but a process that is paused, or a
//     path through a proxy, knows nothing of that. Use package pglock and package fence where a late write would do harm.
//   - Anything across a failover: a new primary knows no advisory locks, and the holders of the old one may not have heard yet.
//
// # When things fail
//
//	a crash of the holder          free at once; the server sees the connection end
//	a machine or network gone      free after about 8 s: the server's TCP settings for this session see to it
//	the backend is terminated      the context ends at once; Release says *LostError
//	idle_session_timeout           switched off for the session
//	PgBouncer and other poolers    refused with ErrPooler by Client; InTx and InSQLTx work
//	a standby                      refused with ErrStandby
//	a busy pool                    nothing: Client has connections of its own, one for each lock held or waited for
package advisory
