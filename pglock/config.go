package pglock

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	// DefaultTTL is how long a lease lives without a renewal, and so how long a crashed holder keeps others waiting.
	DefaultTTL = 15 * time.Second

	// MinTTL is the shortest TTL: below it, a pause of the scheduler or of the network costs the lease.
	MinTTL = 100 * time.Millisecond

	// minRenewal is the shortest time between renewals: less would only load the database.
	minRenewal = 10 * time.Millisecond

	// maxHold bounds HoldAtLeast: a mistake in the unit must not block a name for ever.
	maxHold = 366 * 24 * time.Hour

	// maxLabel bounds Config.Owner, in bytes.
	maxLabel = 1024
)

// Config tunes a Client. The zero value is ready to use.
type Config struct {
	// Schema is where migrations.Up put the lock tables and functions. Default: pglock.
	Schema string

	// Owner is the label under which people see this client: in HeldError, in Inspect. It never decides who holds a lock.
	// Default: host/program/pid.
	Owner string

	// TTL is how long a lease lives without a renewal. Default: DefaultTTL. At least MinTTL, at most the cap of the
	// installation (30 s unless migrations.Up was told otherwise).
	TTL time.Duration

	// RenewEvery is the time between renewals. Default: a third of the TTL. At most half of what a holder may trust, so that
	// one lost renewal never costs the lease. (One over a connection that went silent can, where what is left is too short
	// to make another: with a TTL of about a second or less, or one in which a connection takes a quarter of the TTL.)
	RenewEvery time.Duration

	// ListenURL is a connection string, as Open takes it, for the one connection on which a client listens for releases while
	// it waits. It is for services behind a pooler, through which no notification comes: let it lead to the database itself.
	// Default: as the other connections. A client whose notifications do not arrive notices, and asks more often instead; while others
	// that are woken hand a lock to each other, it does not get it, but with Fair.
	ListenURL string

	// Logger gets what no call can return: broken connections, failed renewals, grants held back. Default: silent. Without one, and
	// without a deadline, a call that waits for a database that is not there says nothing at all.
	Logger *slog.Logger
}

// resolve fills in the defaults and refuses what cannot keep a lease alive.
func (c Config) resolve() (Config, error) {
	c.Schema = cmp.Or(c.Schema, "pglock")
	if err := checkIdentifier(c.Schema); err != nil {
		return c, err
	}
	if c.Owner == "" {
		c.Owner = defaultOwner()
	}
	if len(c.Owner) > maxLabel || !utf8.ValidString(c.Owner) || strings.ContainsRune(c.Owner, 0) {
		return c, fmt.Errorf("%w: Config.Owner must be valid UTF-8 without NUL, at most %d bytes", ErrInvalidOption, maxLabel)
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.TTL == 0 {
		c.TTL = DefaultTTL
	}
	return c, checkTimes(c.TTL, c.RenewEvery)
}

// checkTimes judges a TTL and the time between renewals together; renewEvery 0 means the default.
func checkTimes(ttl, renewEvery time.Duration) error {
	longest := (ttl - margin(ttl)) / 2
	switch {
	case ttl < MinTTL:
		return fmt.Errorf("%w: TTL %v is below %v", ErrInvalidOption, ttl, MinTTL)
	case renewEvery != 0 && renewEvery < minRenewal, renewEvery > longest:
		return fmt.Errorf("%w: renewal every %v cannot keep a TTL of %v: it must be at least %v and at most %v",
			ErrInvalidOption, renewEvery, ttl, minRenewal, longest)
	}
	return nil
}

// renewal is the time between renewals of a lease: as configured, else a third of the TTL, or less where the TTL is so short
// that the margin takes most of it.
func renewal(ttl, configured time.Duration) time.Duration {
	if configured > 0 {
		return configured
	}
	return min(ttl/3, (ttl-margin(ttl))/2)
}

func checkIdentifier(name string) error {
	if len(name) > 63 || !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
		return fmt.Errorf("%w: schema %q must be valid UTF-8 without NUL, at most 63 bytes", ErrInvalidOption, name)
	}
	return nil
}

func defaultOwner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	label := fmt.Sprintf("%s/%s/%d", host, filepath.Base(os.Args[0]), os.Getpid())
	return strings.ReplaceAll(strings.ToValidUTF8(label, "?"), "\x00", "")
}
