package once

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedlock/fencedlock/pglock"
)

var (
	// ErrRunning comes when another runs the occurrence right now; f has not run. The error is a *DuplicateError, which says who. It
	// may fail yet: who answers to a queue should ask to be called again.
	ErrRunning = errors.New("once: it is running")

	// ErrRan comes when the occurrence was run before, and is not to be run again; f has not run. The error is a *DuplicateError, which
	// says by whom, when, and how it ended.
	ErrRan = errors.New("once: it was run before")

	// ErrNotRecorded comes when f has run and the database did not confirm the record of its end in time. It may be on record or not; if
	// not, the occurrence counts as unfinished, and with Retry is run again.
	ErrNotRecorded = errors.New("once: the end is not on record")

	// ErrNoRecord comes from Last for a job that never ran, or whose records were pruned.
	ErrNoRecord = errors.New("once: nothing is on record")

	// ErrInvalid comes, before any SQL, for a name of a job that is empty, longer than 200 bytes, not UTF-8 or holds a NUL, and for other
	// arguments that cannot be meant.
	ErrInvalid = errors.New("once: invalid argument")
)

// A DuplicateError says why f did not run: what is on record of the occurrence. It matches ErrRunning if the Outcome is Running,
// and ErrRan otherwise.
type DuplicateError struct{ Record }

func (e *DuplicateError) Error() string {
	s := fmt.Sprintf("once: %v: %s by %q", occurrence{e.Job, e.Due}, e.Outcome, e.Owner)
	if !e.Started.IsZero() {
		s += " since " + e.Started.Format(time.RFC3339)
	}
	if !e.Ended.IsZero() {
		s = fmt.Sprintf("once: %v: %s by %q, from %s to %s", occurrence{e.Job, e.Due}, e.Outcome, e.Owner,
			e.Started.Format(time.RFC3339), e.Ended.Format(time.RFC3339))
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Is matches ErrRunning or ErrRan.
func (e *DuplicateError) Is(target error) bool {
	return target == ErrRunning && e.Outcome == Running || target == ErrRan && e.Outcome != Running
}

// state is the code of a server's error; empty for any other error.
func state(err error) string {
	if pe, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pe.Code
	}
	return ""
}

// explain turns an error of the driver into one that a caller can act on.
func (r *Runner) explain(what string, err error) error {
	switch state(err) {
	case "3F000", "42883", "42P01", "42704":
		return fmt.Errorf("once: %s: %w: run migrations.Up for schema %q with this version of the library (%w)", what, pglock.ErrNotMigrated, r.locks.Schema(), err)
	case "25006":
		return fmt.Errorf("once: %s: %w: the records are written on the primary (%w)", what, pglock.ErrReadOnly, err)
	case "42501":
		return fmt.Errorf("once: %s: %w: as the owner of the schema: SELECT %s.grant_locker('the_role') (%w)",
			what, pglock.ErrNotAllowed, pgx.Identifier{r.locks.Schema()}.Sanitize(), err)
	}
	if err != nil {
		return fmt.Errorf("once: %s: %w", what, err)
	}
	return nil
}
