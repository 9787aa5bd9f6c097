package migrateguard

import (
	"errors"
	"fmt"
	"strings"

	"github.com/golang-migrate/migrate/v4"
	"github.com/jackc/pgx/v5/pgconn"
)

var (
	// ErrInvalid comes, before any SQL, for a configuration or an argument that cannot work; and for a version table that is none, or
	// whose schema does not exist, and for a source without migrations.
	ErrInvalid = errors.New("migrateguard: invalid argument")

	// ErrBusy comes when Config.Wait was over, or ctx had ended, while somebody else was at it. The error says who, and
	// matches what they hold: pglock.ErrHeld or advisory.ErrHeld.
	ErrBusy = errors.New("migrateguard: somebody else is at it")

	// ErrDirty is a version that a migration has left behind which failed, or was killed. The error is a *DirtyError.
	ErrDirty = errors.New("migrateguard: dirty version")

	// ErrLost comes when the lock was lost on the way. Together with ErrMigrated: nothing was missed by it.
	ErrLost = errors.New("migrateguard: the lock was lost")

	// ErrMigrated comes when all that was asked for has been done and recorded, and then the lock was found to be lost, or its
	// release was not confirmed (pglock.ErrNotReleased). It ends by itself. A service may go on.
	ErrMigrated = errors.New("migrateguard: migrated, but the lock was not given back in order")

	// ErrUnknownVersion comes when the database is at a version that the source does not have. Most often the source is that
	// of an older program than the one that migrated last.
	ErrUnknownVersion = errors.New("migrateguard: this program's source has no such version")
)

// A DirtyError says which version is dirty, and how to go on. It matches ErrDirty, golang-migrate's ErrDirty, and Cause.
type DirtyError struct {
	Table   string // the version table, with its schema
	Version int    // that is recorded as dirty: where the migration was going to; -1 for nothing
	From    int    // where it came from; to those who found it, the likely one: the version before; -1 for nothing, or not known
	Cause   error  // what went wrong, to who ran it; to those who found it ErrUnknownVersion if their source does not have it, else nil
}

func (e *DirtyError) Error() string {
	if errors.Is(e.Cause, ErrUnknownVersion) {
		return fmt.Sprintf("migrateguard: version %d of %s is dirty: a migration to it failed, or was ended in the middle. What to do about it is the "+
			"newer program's to say: %s", e.Version, e.Table, unprefixed(e.Cause))
	}
	cause, guess := "", " (if it went up)"
	if e.Cause != nil {
		cause, guess = strings.TrimPrefix(e.Cause.Error(), "migrateguard: ")+". ", ""
	}
	return fmt.Sprintf("migrateguard: %sversion %d of %s is dirty: a migration to it failed, or was ended in the middle. Look at what it has left "+
		"behind, repair that by hand, and then record the version that the database really is at: Force(%d) if all of the migration is there, "+
		"Force(%d) if nothing of it is%s; in psql UPDATE %s SET version = …, dirty = false", cause, e.Version, e.Table, e.Version, e.From, guess, e.Table)
}

// Is matches ErrDirty.
func (e *DirtyError) Is(target error) bool { return target == ErrDirty }

// Unwrap returns golang-migrate's error, and the cause.
func (e *DirtyError) Unwrap() []error {
	if e.Cause == nil {
		return []error{migrate.ErrDirty{Version: e.Version}}
	}
	return []error{migrate.ErrDirty{Version: e.Version}, e.Cause}
}

// sqlState is the code of a server's error; empty for any other error.
func sqlState(err error) string {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return pe.Code
	}
	return ""
}

// fileError adds what a person needs and PgError's message leaves out: the line of the file, the detail and the hint.
func fileError(sql string, err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	if text := []rune(sql); pg.Position > 0 && int(pg.Position) <= len(text) {
		err = fmt.Errorf("line %d: %w", 1+strings.Count(string(text[:pg.Position]), "\n"), err)
	}
	for _, more := range []string{pg.Detail, pg.Hint} {
		if more != "" {
			err = fmt.Errorf("%w. %s", err, more)
		}
	}
	return err
}
