package fence

import (
	"cmp"
	"errors"
	"fmt"
)

var (
	// ErrStale comes when a later token has written what this grant wanted to write, or waits to raise the fence that it wanted to
	// pass (see [Raise]), or, from [HeldTx] and [Hold], when a later grant exists: the lock has moved on. Nothing was written. Drop the lease and stop; no retry can help. It comes as
	// a [*StaleError], which knows both tokens. Where a fence may have been forgotten (pglock.Client.PruneFences), also a grant that is
	// over and earlier than what was forgotten gets it.
	ErrStale = errors.New("stale")

	// ErrBehind comes together with ErrStale when what was there is a token that the lock service in this database has not
	// granted yet: that one has lost its memory, to a restored backup say, and would go on handing out tokens that nobody
	// takes. Nothing was written. The way out is pglock's Client.RaiseTokenFloor, for the owner of the schema; the message has
	// the SQL.
	ErrBehind = errors.New("the lock service is behind")

	// ErrAlreadyWritten comes when this very grant has written the row before: the write is a replay, or a second one that
	// did not say [Again]. Nothing was written. The lease is as good as before; after a lost reply it is the good news.
	ErrAlreadyWritten = errors.New("already written by this grant, which writes a row once unless it says fence.Again()")

	// ErrNoRow comes from Update and Delete when there is no such row, and no later grant is known to have deleted it (who deleted
	// it may have been forgotten: see pglock.Client.PruneFences). Nothing was written. The lease is as good as before.
	ErrNoRow = errors.New("no such row")

	// ErrRowExists comes from Insert when the row is there under an earlier token. Nothing was written, and the lease is as
	// good as before. Use Upsert to replace it.
	ErrRowExists = errors.New("the row exists")

	// ErrOtherLock comes when the resource belongs to another lock or slot, whose tokens say nothing about this one's. It
	// belongs to whichever raised its fence first. Nothing was written, and the lease is as good as before: two parts of the
	// program disagree about which lock protects the resource, or the lock was given another name. It comes as an [*OtherLockError],
	// which names both. The owner of the schema gives a resource to another lock for good, the tokens that it has seen along with it:
	//
	//	UPDATE pglock.fences SET name = 'the lock', slot = 0 WHERE relation = 0 AND resource = 'the resource'
	//
	// and a protected table by the statement that its refusal has as its hint.
	ErrOtherLock = errors.New("fenced by another lock")

	// ErrNeverGranted comes when the database knows the lock and has never granted it with that token or a later one, or
	// when no lock anywhere can have got so far. Nothing was written. The token was made up, or comes from another database. A row
	// that bears the token already is not asked for it again ([Again]).
	ErrNeverGranted = errors.New("the token was never granted")

	// ErrNoToken comes before anything is sent, when what was passed can be no grant: a token of 0, below 0 or of 2^53 and
	// above, a bad lock name, a negative slot. Pass the Grant of a lease that was acquired.
	ErrNoToken = errors.New("not a grant")

	// ErrInvalid comes before anything is sent, when a table, a row, a resource name or an option cannot be meant; and from
	// a write whose key several rows have, because it is not unique. Nothing was written.
	ErrInvalid = errors.New("invalid")

	// ErrNotMigrated comes when the schema or the functions that fences need are not in this database. Run migrations.Up
	// there. It is the database of the data, which need not be the one of the locks.
	ErrNotMigrated = errors.New("the fences are not installed")

	// ErrReadOnly comes from a standby, and from a session or a transaction that may not write. Nothing was written, and the lease is as
	// good as before. During a failover or a switch-over it passes, on another connection or on the same: the caller knows how long to try.
	ErrReadOnly = errors.New("the server is read-only")

	// ErrExpired comes from [HeldTx] and [Hold] when the lease's time is over in the database, though nobody has been granted
	// the lock since. Nothing was written. Acquire it again.
	ErrExpired = errors.New("the lease has expired")

	// ErrElsewhere comes from [HeldTx] and [Hold] when the database that they write to does not know the lock: they need it
	// beside the data. Where the locks live in another database, use [Tx], which needs no lock but a fence.
	ErrElsewhere = errors.New("the lock is not in this database")

	// ErrCommitUnknown comes from [Tx], [HeldTx] and [StatedTx] when the connection was lost during the commit, or after all of the
	// transaction was sent at once ([First]): the writes may be there or not. A second transaction of the same grant can look.
	ErrCommitUnknown = errors.New("nobody knows whether the transaction was committed")

	// ErrShared comes from every fence that compares tokens, before any SQL, for the grant of a shared lease: others hold the lock
	// at the same time, and the order of their tokens is not the order of their writes. [HeldTx] and [Hold] take it. From package
	// fencehttp it also comes for the grant of a permit.
	ErrShared = errors.New("the lease is shared")
)

// A StaleError is a write that came too late. It matches [ErrStale], and [ErrBehind] if Behind.
type StaleError struct {
	Resource  string // what was written: a resource's name, or a table and a key
	Lock      string // the lock that the caller no longer holds
	Token     Token  // the caller's
	LastToken Token  // the one that has written last, or waits to; where that was forgotten, the first one that is let in
	Behind    bool   // the lock service of this database has not granted LastToken yet
	cure      string // then
	row       bool   // which, unlike a resource, does not know whose token it has
}

func (e *StaleError) Error() string {
	s := fmt.Sprintf("fence: %s: stale token %d, token %d was here: stop, lock %q has moved on", e.Resource, e.Token, e.LastToken, e.Lock)
	if e.row {
		s += ", or the row is written under another lock too"
	}
	if e.Behind {
		s += "; its service has not granted that token yet: " + cmp.Or(e.cure, fmt.Sprintf("let the owner of its schema raise the token floor to %d", e.LastToken))
	}
	return s
}

// raiseFloor is the cure for a lock service that is behind a token.
func (c config) raiseFloor(last Token) string {
	return fmt.Sprintf("let the owner of its schema SELECT %s.raise_token_floor(%d)", c.quoted(), last)
}

// Is makes errors.Is find [ErrStale] and [ErrBehind].
func (e *StaleError) Is(target error) bool {
	return target == ErrStale || target == ErrBehind && e.Behind
}

// An OtherLockError names the lock that a resource belongs to beside the caller's. It matches [ErrOtherLock].
type OtherLockError struct {
	Resource  string
	Lock      string // the caller's
	Slot      int
	OtherLock string // the resource's
	OtherSlot int
}

func (e *OtherLockError) Error() string {
	return fmt.Sprintf("fence: %s: fenced by lock %q slot %d, not by lock %q slot %d: use one lock for it, or another resource name",
		e.Resource, e.OtherLock, e.OtherSlot, e.Lock, e.Slot)
}

// Is makes errors.Is find [ErrOtherLock].
func (e *OtherLockError) Is(target error) bool { return target == ErrOtherLock }
