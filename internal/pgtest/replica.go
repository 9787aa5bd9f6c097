package pgtest

import (
	"context"
	"errors"
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
)

// A Replica is a database on a standby, and the way by which the standby follows: freeze it, and the standby falls behind.
type Replica struct {
	*Database
	Way *Relay
}

// Replica starts a standby of the database's server, which must be the test's own, and returns when it has all that its
// primary has. It follows over a relay. It is stopped when the test ends.
func (d *Database) Replica(t testing.TB, o pgtemp.StandbyOptions) *Replica {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	way := NewRelay(t, d.Server)
	o.Via = way.Addr()
	s, err := d.Server.Standby(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	r := &Replica{Database: Adopt(t, s, d.Name), Way: way}
	r.WaitReplayed(t, d)
	return r
}

// Adopt returns a database on a server that the test has made, such as a copy. The server is stopped when the test ends.
func Adopt(t testing.TB, s *pgtemp.Server, database string) *Database {
	t.Helper()
	stopAtEnd(t, s)
	return On(t, s, database)
}

// On returns another database of a server.
func On(t testing.TB, s *pgtemp.Server, database string) *Database {
	d := at(s, database)
	t.Cleanup(d.session.close)
	return d
}

// Dump returns the database as pg_dump writes it: see pgtemp.Server.Dump. The test is skipped where there is none ("pg_dump"
// in PGLOCK_TEST_REQUIRE).
func (d *Database) Dump(t testing.TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	sql, err := d.Server.Dump(ctx, d.Name)
	if errors.Is(err, pgtemp.ErrNoDump) {
		missing(t, "pg_dump", err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	return sql
}

// NeedClock skips the test where a server cannot be given a clock of its own ("faketime" in PGLOCK_TEST_REQUIRE).
func NeedClock(t testing.TB) {
	t.Helper()
	if err := pgtemp.CheckClock(); err != nil {
		missing(t, "faketime", err.Error())
	}
}
