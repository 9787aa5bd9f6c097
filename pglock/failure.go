package pglock

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedlock/fencedlock/internal/primary"
)

// sqlState is the code of a server's error; empty for any other error.
func sqlState(err error) string {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return pe.Code
	}
	return ""
}

// noTokens is the SQLSTATE of a sequence that has ended.
const noTokens = "2200H"

// poisoned: one value of the batch was refused, so the others are to be sent without it. Where no tokens are left, those that need
// none are.
func poisoned(err error) bool {
	state := sqlState(err)
	return strings.HasPrefix(state, "22") || strings.HasPrefix(state, "54")
}

// A hookError comes from a hook of the caller's pool: what it means is the caller's to know.
type hookError struct {
	hook string
	err  error
}

func (e *hookError) Error() string { return e.hook + " of the pool: " + e.err.Error() }
func (e *hookError) Unwrap() error { return e.err }

// mispooled: the session is not as we set it up, or forgets what we prepared. A pooler is in between that did not say so.
func mispooled(err error) bool {
	switch sqlState(err) {
	case "25000", "26000", "42P05":
		return true
	}
	return false
}

// readOnly: a standby, or a session that may not write. Behind a pooler a standby already refuses READ WRITE (0A000), and only the
// routine tells that from other features that are not supported.
func readOnly(err error) bool {
	var pe *pgconn.PgError
	return errors.Is(err, primary.ErrStandby) || errors.As(err, &pe) && (pe.Code == "25006" || pe.Code == "0A000" && pe.Routine == "call_bool_check_hook")
}

// A part is what a role must have been given for a call.
type part int

const (
	locker part = iota
	auditor
	owner
)

// denied says how a role comes to play the part.
func (p part) denied(schema string) string {
	switch quoted := (pgx.Identifier{schema}).Sanitize(); p {
	case locker:
		return fmt.Sprintf("as the owner of the schema: SELECT %s.grant_locker('the_role')", quoted)
	case auditor:
		return fmt.Sprintf("as the owner of the schema: SELECT %s.grant_auditor('the_role')", quoted)
	}
	return fmt.Sprintf("only the owner of schema %q may", schema)
}

// explain is explainTo for what a locker does.
func explain(schema string, err error) error { return explainTo(locker, schema, err) }

// explainTo turns an error of the driver into one that a caller can act on. Errors that it does not know pass unchanged.
func explainTo(p part, schema string, err error) error {
	switch state := sqlState(err); {
	case err == nil, errors.As(err, new(*hookError)):
		return err
	case readOnly(err):
		return fmt.Errorf("%w: %w", ErrReadOnly, err)
	case state == "3F000", state == "42883", state == "42P01", state == "42703", state == "42704", state == "P0002":
		return fmt.Errorf("%w: run migrations.Up for schema %q with this version of the library (%w)", ErrNotMigrated, schema, err)
	case state == "42501" && errors.As(err, new(*connectError)) && fatal(err):
		return fmt.Errorf("%w: the role needs CONNECT on the database (%w)", ErrNotAllowed, err)
	case state == "42501":
		return fmt.Errorf("%w: %s (%w)", ErrNotAllowed, p.denied(schema), err)
	case state == noTokens:
		return fmt.Errorf("no token is left: sequence %s.fencing_token has ended, at 2^53-1, where only a hand or a wrong clock can have brought it; "+
			"with all clients stopped, the owner of the schema may setval it to the latest token that was granted (see leases, fences and fenced tables), "+
			"or, if that is the last one, begin anew: migrations.Down, migrations.Up, and 0 for the tokens in fenced tables (%w)",
			pgx.Identifier{schema}.Sanitize(), err)
	case poisoned(err):
		return fmt.Errorf("%w: the database refuses a value: %w", ErrInvalidOption, err)
	}
	return err
}

// fatal: the server ended the connection with it.
func fatal(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && pe.SeverityUnlocalized == "FATAL"
}

// hopeless: waiting does not cure it, so Acquire returns at once.
func hopeless(err error) bool {
	var invalid *pgconn.ParseConfigError
	switch {
	case errors.Is(err, ErrNotMigrated), errors.Is(err, ErrNotAllowed), errors.Is(err, ErrInvalidOption),
		errors.Is(err, ErrInvalidName), errors.Is(err, ErrOtherKind), errors.Is(err, ErrTokensBehind), errors.Is(err, ErrClosed), errors.As(err, &invalid):
		return true
	}
	state := sqlState(err)
	return strings.HasPrefix(state, "28") || state == "3D000" || state == noTokens // password, role; database
}
