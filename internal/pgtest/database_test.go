package pgtest_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

func TestDatabasesAreApartAndLeaveNothingOnAServerThatStays(t *testing.T) {
	t.Parallel()
	a, b := pgtest.Empty(t), pgtest.Empty(t)
	a.Exec(t, `CREATE TABLE only_in_a (); CREATE SCHEMA s`)
	if there := pgtest.Query[bool](t, b, `SELECT to_regclass('only_in_a') IS NOT NULL`); there {
		t.Error("b sees a's table")
	}
	if a.Server.Local() {
		return // they go with the server
	}
	var gone string
	t.Run("of a test that ends", func(t *testing.T) {
		d := pgtest.Empty(t)
		gone = d.Name
		d.Conn(t)
		d.Pool(t)
	})
	if there := pgtest.Query[bool](t, a, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, gone); there {
		t.Errorf("database %s has outlived its test", gone)
	}
}

func TestKillBackendsByName(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	victim, other := d.Conn(t), d.Conn(t)
	if _, err := victim.Exec(t.Context(), `SET application_name = 'victim'`); err != nil {
		t.Fatal(err)
	}
	if n := d.KillBackends(t, `application_name = 'victim'`); n != 1 {
		t.Errorf("killed %d, want 1", n)
	}
	if err := victim.Ping(t.Context()); err == nil {
		t.Error("the victim lives")
	}
	if err := other.Ping(t.Context()); err != nil {
		t.Errorf("a session that was not meant: %v", err)
	}
}

func TestWaitForALock(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	d.Exec(t, `CREATE TABLE locked ()`)
	tx, err := d.Conn(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `LOCK locked`); err != nil {
		t.Fatal(err)
	}
	waiter := d.Conn(t)
	got := make(chan error, 1)
	go func() {
		_, err := waiter.Exec(t.Context(), `SELECT FROM locked`)
		got <- err
	}()
	d.WaitFor(t, pgtest.Waiting)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
}

func TestRole(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	role := d.Role(t)
	d.Exec(t, `CREATE SCHEMA s AUTHORIZATION `+role)
	conn, err := pgx.Connect(t.Context(), d.URLAs(role))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var who string
	if err := conn.QueryRow(t.Context(), `SELECT current_user`).Scan(&who); err != nil || who != role {
		t.Errorf("connected as %q, %v, want %s", who, err, role)
	}
	if _, err := conn.Exec(t.Context(), `CREATE ROLE other`); sqlState(err) != "42501" {
		t.Errorf("CREATE ROLE: %v, want 42501", err)
	}
}
