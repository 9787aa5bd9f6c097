package advisory

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

var (
	// ErrHeld comes when another holds the lock: from TryAcquire, and from Acquire when its ctx ended first. The error is a
	// *HeldError, which says who.
	ErrHeld = errors.New("advisory: held by another")

	// ErrLost is the end of a session lock that was not wanted: the cause of its context, and the answer of Release and Do. The
	// error is a *LostError, which says why.
	ErrLost = errors.New("advisory: lock lost")

	// ErrReleased is the end of a session lock by Release, and the answer of every further Release.
	ErrReleased = errors.New("advisory: lock released")

	// ErrClosed is the end of a session lock by Client.Close, and the answer of every call on a closed client.
	ErrClosed = errors.New("advisory: client closed")

	// ErrNotReleased comes from Release, Do and Close when the server did not confirm in time. The connection has been closed;
	// the lock is free as soon as the server notices, within seconds where the network is down.
	ErrNotReleased = errors.New("advisory: release not confirmed")

	// ErrReentrant comes when a Client is asked for a lock with the context of that very lock, as the function of a Do gets one: the call
	// could only wait for itself. Nothing was sent.
	ErrReentrant = errors.New("advisory: the lock is held by the caller itself")

	// ErrPooler comes from a Client behind a connection pooler such as PgBouncer. With transaction pooling a session lock would
	// stay with a server connection that others use next: two clients could hold it, and it would outlive both. With session
	// pooling it would not, but the server could not see that the holder's machine is gone: so it is refused as well.
	ErrPooler = errors.New("advisory: session locks need a direct connection")

	// ErrStandby comes from a server in recovery. It would grant a lock that is held on the primary. The connection is closed, so
	// that the next try can find the primary; of several hosts in the connection string, that is looked for.
	ErrStandby = errors.New("advisory: the server is a standby, whose locks are not those of the primary: connect to that")

	// ErrInvalidKey comes, before any SQL, for a key that is none: the zero Key, or a Name with an empty part.
	ErrInvalidKey = errors.New("advisory: invalid key")

	// ErrInvalidOption comes, before any SQL, for a configuration, option or argument that cannot work.
	ErrInvalidOption = errors.New("advisory: invalid option")
)

// A HeldError says who was in the way. It matches ErrHeld.
type HeldError struct {
	Key     Key
	Holders []Entry // who held it when they were looked up; empty if they had just let go, or could not be looked up
	Own     bool    // this very Client holds it: it takes no key twice
}

func (e *HeldError) Error() string {
	what := "advisory: " + e.Key.describe()
	if e.Own {
		return what + " is held by this client already, which takes no key twice: share that lock, or wait for it (Acquire)"
	}
	if len(e.Holders) == 0 {
		return what + " was held just now: try again, or see who holds it in pg_locks"
	}
	var more string
	if n := len(e.Holders) - 1; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	first := e.Holders[0]
	if first.PID == 0 {
		return what + " is held by a prepared transaction" + more + "; see pg_prepared_xacts"
	}
	return fmt.Sprintf("%s is held by %s%s; to end that session: SELECT pg_terminate_backend(%d)", what, first.session(), more, first.PID)
}

// Is matches ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// A LostError says which lock was lost with its session, and what was heard last. It matches ErrLost, and the reason.
type LostError struct {
	Key    Key
	Reason error
}

func (e *LostError) Error() string {
	return fmt.Sprintf("advisory: %s lost with its session: %v; stop the work that it protects", e.Key.describe(), e.Reason)
}

// Is matches ErrLost.
func (e *LostError) Is(target error) bool { return target == ErrLost }

// Unwrap returns the reason.
func (e *LostError) Unwrap() error { return e.Reason }

// sqlState is the code of a server's error; empty for any other error.
func sqlState(err error) string {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return pe.Code
	}
	return ""
}

// explain says what was tried, and adds advice where there is some.
func explain(key Key, err error) error {
	switch {
	case err == nil:
		return nil
	case sqlState(err) == "53200":
		return fmt.Errorf("advisory: %s: the server's table of locks is full, for everybody: take one lock for many things instead of "+
			"one for each, or raise max_locks_per_transaction (%w)", key.describe(), err)
	}
	return fmt.Errorf("advisory: %s: %w", key.describe(), unprefixed{err})
}

// unprefixed names the package once.
type unprefixed struct{ error }

func (e unprefixed) Error() string { return strings.TrimPrefix(e.error.Error(), "advisory: ") }
func (e unprefixed) Unwrap() error { return e.error }

// hopeless: waiting does not cure it, so Acquire returns at once.
func hopeless(err error) bool {
	var invalid *pgconn.ParseConfigError
	state := sqlState(err)
	return errors.Is(err, ErrPooler) || errors.Is(err, ErrInvalidOption) || errors.As(err, &invalid) ||
		strings.HasPrefix(state, "28") || state == "3D000" || state == "42501" // password, role; database; CONNECT
}

func roundAge(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Second)
}
