package migrateguard

import (
	"cmp"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fencedlock/fencedlock/pglock"
)

// DefaultTable is golang-migrate's own.
const DefaultTable = "schema_migrations"

// Config tunes a Guard. The zero value is ready to use.
type Config struct {
	// Schema is where the version table is. It must exist. Default: the first schema of the search_path when a call begins, as in
	// golang-migrate. Say it where a migration makes a schema of the role's name, which then is the first one of '"$user", public': a later
	// call would look for the version there, and begin anew.
	Schema string

	// Table is the version table. It is created when there is something to record. Default: DefaultTable.
	Table string

	// Session takes a session lock instead of a lease: for roles that may not have the lease's schema installed. It needs a
	// direct connection.
	Session bool

	// Wait bounds how long a call waits for others who migrate, before ErrBusy. It bounds neither the migrations nor
	// anything else. Default: as long as they are at it, until ctx ends.
	Wait time.Duration

	// Lease is the client that takes the lease: its schema, its TTL, and the owner that waiters are shown.
	Lease pglock.Config

	// Logger is told what Notify is told. Default: silent.
	Logger *slog.Logger

	// Notify, if there is one, is called with each Event, on the goroutine of the call. Waiting for it is waiting: be quick, and
	// call nothing of this Guard, which is at the call.
	Notify func(Event)
}

// resolve fills in the defaults and refuses what cannot work.
func (c Config) resolve() (Config, error) {
	c.Table = cmp.Or(c.Table, DefaultTable)
	c.Lease.Schema = cmp.Or(c.Lease.Schema, "pglock")
	for _, name := range []string{c.Schema, c.Table} {
		if len(name) > 63 || !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
			return c, fmt.Errorf("%w: schema or table %q must be valid UTF-8 without NUL, at most 63 bytes", ErrInvalid, name)
		}
	}
	if c.Wait < 0 {
		return c, fmt.Errorf("%w: Config.Wait %v is negative", ErrInvalid, c.Wait)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Lease.Logger == nil {
		c.Lease.Logger = c.Logger
	}
	return c, nil
}
