package pgtest_test

import (
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

const guardIsAtHome = `SELECT database = (SELECT oid FROM pg_database WHERE datname = current_database()) FROM pglock.guard`

func TestDBIsMigratedAndAtHome(t *testing.T) {
	t.Parallel()
	a, b := pgtest.DB(t), pgtest.DB(t)
	if a.Name == b.Name {
		t.Fatal("two tests share a database")
	}
	if !pgtest.Query[bool](t, a, guardIsAtHome) {
		t.Error("the guard names another database")
	}
	if pgtest.Query[bool](t, pgtest.Copy(t), guardIsAtHome) {
		t.Error("the guard of an untouched copy names the copy")
	}
}

func TestAge(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, `INSERT INTO pglock.leases (name, slot) VALUES ('aged', 0)`)
	d.Exec(t, `UPDATE pglock.leases SET granted_at = clock_timestamp(), expires_at = clock_timestamp(), not_before = clock_timestamp()`)
	const age = `SELECT clock_timestamp() - least(granted_at, expires_at, not_before) FROM pglock.leases WHERE name = 'aged'`
	d.Age(t, "aged", time.Hour)
	if got := pgtest.Query[time.Duration](t, d, age); got < time.Hour || got > time.Hour+time.Minute {
		t.Errorf("%v old, want an hour", got)
	}
}

func TestOwnServerKeepsItsDatabaseOverARestart(t *testing.T) {
	t.Parallel()
	s, d := pgtest.OwnServer(t, pgtemp.Options{Durable: true})
	conn := d.Conn(t)
	d.Exec(t, `CREATE TABLE kept ()`)
	if err := s.Restart(t.Context(), pgtemp.Immediate); err != nil {
		t.Fatal(err)
	}
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("a connection outlived a crash of the server")
	}
	if !pgtest.Query[bool](t, d, `SELECT to_regclass('kept') IS NOT NULL`) {
		t.Error("what was committed is lost")
	}
}

func TestStandby(t *testing.T) {
	t.Parallel()
	primary, standby := pgtest.Standby(t)
	primary.Exec(t, `CREATE TABLE numbers AS SELECT 1 AS n`)
	standby.WaitReplayed(t, primary)
	if n := pgtest.Query[int](t, standby, `SELECT n FROM numbers`); n != 1 {
		t.Errorf("n = %d, want 1", n)
	}
	if err := primary.Server.Halt(t.Context(), pgtemp.Immediate); err != nil {
		t.Fatal(err)
	}
	if err := standby.Server.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	standby.Exec(t, `INSERT INTO numbers VALUES (2)`)
}
