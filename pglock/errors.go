package pglock

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
)

var (
	// ErrHeld comes from TryAcquire when another holds the lock, and from Acquire when its ctx ended first. The error is a
	// *HeldError, which says who.
	ErrHeld = errors.New("pglock: held by another")

	// ErrHeldBack comes from TryAcquire when the database grants nothing for a while, after a restart, a failover or a
	// restore; Acquire waits through it. The error is a *HeldBackError, which says for how long.
	ErrHeldBack = errors.New("pglock: new grants are held back")

	// ErrLost is the end of a lease that was not wanted: it is the cause of the lease's context, and the answer of Renew,
	// Release and Do. The error is a *LostError, which says why.
	ErrLost = errors.New("pglock: lease lost")

	// ErrReleased is the end of a lease by Release; it is also the answer of a zero Lease.
	ErrReleased = errors.New("pglock: lease released")

	// ErrClosed is the end of a lease by Client.Close, and the answer of every call on a closed client.
	ErrClosed = errors.New("pglock: client closed")

	// ErrNotReleased comes from Do, Release and Close when the database did not confirm a release in time. It is still tried in
	// the background; if that fails too, the lease ends by itself at the end of its TTL. The work of a Do was done under
	// the lease all the same.
	ErrNotReleased = errors.New("pglock: release not confirmed")

	// ErrResigned is the cause of the context of a term that Elector.Resign or Abstain has ended.
	ErrResigned = errors.New("pglock: resigned")

	// ErrNoLeader comes from Elector.Leader and Observe while nobody leads.
	ErrNoLeader = errors.New("pglock: nobody leads")

	// ErrReadOnly comes from a standby and from a server or role that refuses to write. The connection is dropped, so that
	// the next try can find the primary; of several hosts in the connection string, that is looked for. Acquire waits through it.
	ErrReadOnly = errors.New("pglock: the server is read-only")

	// ErrNotMigrated comes when the schema is missing or of another version: run migrations.Up.
	ErrNotMigrated = errors.New("pglock: the lock schema is not there")

	// ErrNotAllowed comes when the role lacks a privilege; the message says how to grant it.
	ErrNotAllowed = errors.New("pglock: permission denied")

	// ErrTokensBehind comes when this client has seen a token so far ahead of the database's sequence that following it
	// would use the sequence up. The message says how to raise the floor.
	ErrTokensBehind = errors.New("pglock: the database hands out tokens behind one seen before")

	// ErrOwnTransaction comes when a lock is asked for with the ctx of a transaction that holds it (fence.HeldTx): the call could
	// only wait for itself. Acquire it before the transaction, or after.
	ErrOwnTransaction = errors.New("pglock: the lock is held by the transaction that asks for it")

	// ErrReentrant comes when a lock is asked for with the context of a lease that holds it, as the function of a Do gets one: the call
	// could only wait for itself. A client knows its own leases, and sends nothing. For those of other clients it asks once, and compares
	// the token of whoever is in the way: so a lock of the same name in another database is another lock, however clients connect, and
	// after a failover too. The same holds for ErrOwnTransaction. Where several share the lock, the token may be that of
	// another holder: then the call waits as any other does.
	ErrReentrant = errors.New("pglock: the lock is held by the caller itself")

	// ErrOtherKind comes while somebody holds the name as something else: with another number of Permits, say. Nothing was granted, and
	// waiting is the caller's to do. The error is an *OtherKindError.
	ErrOtherKind = errors.New("pglock: the lock is of another kind")

	// ErrInvalidName comes, before any SQL, for a lock name that is empty, longer than 255 bytes, not UTF-8, or holds a NUL.
	ErrInvalidName = errors.New("pglock: invalid lock name")

	// ErrInvalidOption comes for a configuration or option that cannot work, before any SQL where the client can know. A
	// TTL above the cap of the installation is known once a connection has been made.
	ErrInvalidOption = errors.New("pglock: invalid option")
)

// A HeldError says who was in the way. It matches ErrHeld.
type HeldError struct {
	Name      string
	Owner     string        // the holder's label, as its Config.Owner has it
	Token     fence.Token   // of the holder's grant, or of the last holder's; 0 where it was not told
	Since     time.Time     // when it was granted, by the database's clock; of the last holder while it is changing hands
	Remaining time.Duration // until it can be free at the latest, unless it is renewed; 0: it is changing hands just now
	Permits   int           // if all of a semaphore were taken, how many: then the grant is the one that may be over first
	Over      bool          // nobody holds it any more: HoldAtLeast or LockDelay keeps it from others for what remains
}

func (e *HeldError) Error() string {
	if e.Remaining <= 0 {
		return fmt.Sprintf("pglock: %q is changing hands just now: try again", e.Name)
	}
	if e.Over {
		return fmt.Sprintf("pglock: %q was held by %q since %s (token %d), and is kept from others for another %v (HoldAtLeast or LockDelay)",
			e.Name, e.Owner, e.Since.Format(time.RFC3339), e.Token, e.Remaining.Round(time.Millisecond))
	}
	if e.Permits > 1 {
		return fmt.Sprintf("pglock: all %d permits of %q are taken; the first to be free may be that of %q, since %s (token %d), %v left unless renewed",
			e.Permits, e.Name, e.Owner, e.Since.Format(time.RFC3339), e.Token, e.Remaining.Round(time.Millisecond))
	}
	return fmt.Sprintf("pglock: %q is held by %q since %s (token %d), %v left unless renewed",
		e.Name, e.Owner, e.Since.Format(time.RFC3339), e.Token, e.Remaining.Round(time.Millisecond))
}

// Is matches ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// A HeldBackError says for how long nothing is granted. It matches ErrHeldBack, not ErrHeld: nobody holds the lock.
type HeldBackError struct {
	Name      string
	Remaining time.Duration // by the database's clock, when it answered
	Reason    string        // what the database knows of it: the server was restarted, another granted last, …
	schema    string
}

func (e *HeldBackError) Error() string {
	return fmt.Sprintf("pglock: %q: new grants are held back for %v (%s), until every lease that may have been lost has run out; "+
		"the owner of the schema, knowing that none was lost, may end it: Client.EndHold, or SELECT %s.end_hold()",
		e.Name, e.Remaining.Round(time.Millisecond), cmp.Or(e.Reason, "after a restart, failover or restore"), pgx.Identifier{cmp.Or(e.schema, "pglock")}.Sanitize())
}

// Is matches ErrHeldBack.
func (e *HeldBackError) Is(target error) bool { return target == ErrHeldBack }

// A LossCause says why a lease was lost.
type LossCause string

const (
	// Expired: no renewal was confirmed in time. Nobody else need have been granted the lock.
	Expired LossCause = "expired"
	// Taken: another grant of the lock exists.
	Taken LossCause = "taken"
	// Revoked: Client.Revoke took it. The database grants the lock to nobody before the lease would have run out.
	Revoked LossCause = "revoked"
	// HeldTooLong: the MaxHold of the lease is over.
	HeldTooLong LossCause = "held too long"
	// Deleted: the row of the lock is no longer there.
	Deleted LossCause = "deleted"
)

// A LostError says which lease was lost, and why. It matches ErrLost.
type LostError struct {
	Name  string
	Token fence.Token // 0 from a call that was to acquire it: its grant was over before it was known
	Cause LossCause

	// Renewal is what the last try to renew it failed with, where it expired for that; else nil. The LostError does not match it.
	Renewal error
}

func (e *LostError) Error() string {
	if e.Token == 0 {
		return fmt.Sprintf("pglock: lock %q: a grant was over before it was known, and is not to be trusted (%s): try again", e.Name, e.Cause)
	}
	var why string
	if e.Renewal != nil {
		why = fmt.Sprintf(", since it could not be renewed (%s)", prefixed("", e.Renewal))
	}
	return fmt.Sprintf("pglock: lease %q (token %d) lost: %s%s; stop the work that it protects", e.Name, e.Token, e.Cause, why)
}

// Is matches ErrLost.
func (e *LostError) Is(target error) bool { return target == ErrLost }

// An endedError is the end of a lease by Release or Close. Most are never read, so the text is made when one is.
type endedError struct {
	how   error // ErrReleased or ErrClosed
	lease *Lease
	rest  string // of the message
}

func (e *endedError) Error() string {
	return fmt.Sprintf("%v: %v%s", e.how, e.lease, e.rest)
}

func (e *endedError) Unwrap() error { return e.how }

// A prefixedError says what was tried, and names the package once.
type prefixedError struct {
	what string
	err  error
}

func prefixed(what string, err error) error {
	if err == nil {
		return nil
	}
	return &prefixedError{what, err}
}

func (e *prefixedError) Error() string {
	rest := strings.TrimPrefix(e.err.Error(), "pglock: ")
	if e.what == "" {
		return rest
	}
	return "pglock: " + e.what + ": " + rest
}

func (e *prefixedError) Unwrap() error { return e.err }
