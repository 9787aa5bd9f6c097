package pgtest

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
)

// A Database belongs to one test. Its helpers work as the superuser, over a connection that is theirs and is replaced when
// a fault that the test made has broken it, and fail the test on an error. Only the goroutine of the test may call them.
type Database struct {
	Name   string
	URL    string         // of a superuser
	Server *pgtemp.Server // where it is; not to be stopped or halted, unless it is the test's own

	session session

	guard, forgotten, asNew string // what it was like when it was new, with the token
	token                   int64
	spoiled                 atomic.Bool // it is of no use to another test; subtests say so side by side
}

// Empty returns a new, empty database on the shared server. It is dropped when the test ends, or with the server if that is
// ours, whoever is still connected.
func Empty(t testing.TB) *Database {
	t.Helper()
	s := shared.get(t)
	d := copyOf(t, s, "template1")
	d.spoiled.Store(true)
	return d
}

// copyOf makes a database that the test leaves when it ends.
func copyOf(t testing.TB, s *pgtemp.Server, template string) *Database {
	t.Helper()
	d := at(s, freshName("t"))
	if err := shared.admin.do(create(d.Name, template)); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() { d.leave(t) })
	return d
}

// discard drops the database, whoever is connected to it. On a server that is ours it goes with the server: to make files
// where many were removed just now is slow on ext4.
func (d *Database) discard() error {
	d.session.close()
	if d.Server.Local() {
		return nil
	}
	return shared.admin.do(drop(d.Name))
}

func create(name, template string) func(context.Context, *pgx.Conn) error {
	return func(ctx context.Context, conn *pgx.Conn) error {
		var version int
		if err := conn.QueryRow(ctx, "SELECT current_setting('server_version_num')::int").Scan(&version); err != nil {
			return err
		}
		sql := "CREATE DATABASE " + name + " TEMPLATE " + template
		if version >= 15_00_00 {
			sql += " STRATEGY file_copy" // writes a tenth as much, and was the only one before
		}
		_, err := conn.Exec(ctx, sql)
		return err
	}
}

// drop removes a database and ends the connections to it.
func drop(name string) func(context.Context, *pgx.Conn) error {
	return func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
		return err
	}
}

func at(s *pgtemp.Server, name string) *Database {
	d := &Database{Name: name, URL: s.URL(name), Server: s}
	d.session.url = d.URL
	return d
}

// freshName is unlike those of other tests, packages and runs, which may share a server. It needs no quotes.
func freshName(prefix string) string { return prefix + "_" + strings.ToLower(rand.Text()[:12]) }

// Pool returns a pool of superuser connections, closed when the test ends. The test fails if one is still in use then.
func (d *Database) Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), d.URL)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() { closePool(t, pool) })
	return pool
}

// closePool waits for borrowed connections, but not for ever as Close does.
func closePool(t testing.TB, pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() { pool.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(patience):
		t.Errorf("pgtest: %d connections of the pool are still in use at the end of the test", pool.Stat().AcquiredConns())
	}
}

// Conn returns a superuser connection, closed when the test ends.
func (d *Database) Conn(t testing.TB) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), d.URL)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // it may be broken by now, as the test wished
	return conn
}

// Exec runs a statement, or several if there are no arguments.
func (d *Database) Exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	d.do(t, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql, args...)
		return err
	})
}

// Query returns the one value that a query yields.
func Query[T any](t testing.TB, d *Database, sql string, args ...any) T {
	t.Helper()
	var v T
	d.do(t, func(ctx context.Context, conn *pgx.Conn) error { return conn.QueryRow(ctx, sql, args...).Scan(&v) })
	return v
}

// URLAs returns the database's URL for another role, with the superuser's password if there is one: see Role.
func (d *Database) URLAs(role string) string {
	u := parsed(d.URL)
	if password, ok := u.User.Password(); ok {
		u.User = url.UserPassword(role, password)
	} else {
		u.User = url.User(role)
	}
	return u.String()
}

// Role creates a role that can log in with URLAs and has no rights. It is dropped, with what it owns here, when the test
// ends. Roles belong to the whole server: a test that creates its own by a fixed name meets other tests.
func (d *Database) Role(t testing.TB) string {
	t.Helper()
	name := freshName("role")
	create := "CREATE ROLE " + name + " LOGIN"
	if password, ok := parsed(d.URL).User.Password(); ok {
		create += " PASSWORD '" + strings.ReplaceAll(password, "'", "''") + "'"
	}
	d.Exec(t, create)
	t.Cleanup(func() { d.Exec(t, fmt.Sprintf("DROP OWNED BY %[1]s; DROP ROLE %[1]s", name)) })
	return name
}

// parsed parses a URL that this package or pgtemp made.
func parsed(raw string) *url.URL {
	u, err := url.Parse(raw)
	if err != nil {
		panic(err)
	}
	return u
}
