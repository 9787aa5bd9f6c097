package migrations_test

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// poolAs is a pool for another role, or with other settings.
func poolAs(t *testing.T, url string, change ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range change {
		c(cfg)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// bounded is the test's context with an end, since waiting is what may go wrong.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// mustUp installs the schema.
func mustUp(t *testing.T, pool *pgxpool.Pool, opts ...migrations.Option) {
	t.Helper()
	if err := migrations.Up(bounded(t), pool, opts...); err != nil {
		t.Fatal(err)
	}
}

// wantErr checks what an error is and what it says.
func wantErr(t *testing.T, err, target error, says ...string) {
	t.Helper()
	if target != nil && !errors.Is(err, target) || err == nil {
		t.Fatalf("got error %v, want %v", err, target)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("error does not say %q: %v", s, err)
		}
	}
}

// read is the text of a file.
func read(t *testing.T, fsys fs.FS, name string) string {
	t.Helper()
	b, err := fs.ReadFile(fsys, name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// sqlState is the code of PostgreSQL's error, "" for none.
func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// acquire takes a lock as whoever the pool is, and returns its token.
func acquire(ctx context.Context, pool *pgxpool.Pool, schema, name string) (token int64, err error) {
	var status string
	err = pool.QueryRow(ctx, migrations.Render("SELECT status, coalesce(token, 0) FROM pglock.acquire(ARRAY[$1], ARRAY[gen_random_uuid()], 'test', ARRAY[5000000::bigint])", schema),
		pgx.QueryExecModeSimpleProtocol, name).Scan(&status, &token)
	if err == nil && status != "granted" {
		err = errors.New(status)
	}
	return token, err
}

// nothingLeft waits until only the caller is connected to the database.
func nothingLeft(t *testing.T, db *pgtest.Database) {
	t.Helper()
	db.WaitFor(t, `SELECT count(*) = 0 FROM pg_stat_activity
		WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`)
}

// noLocksLeft checks that no advisory lock is held in the database.
func noLocksLeft(t *testing.T, db *pgtest.Database) {
	t.Helper()
	if n := pgtest.Query[int](t, db, `SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
		WHERE locktype = 'advisory' AND d.datname = current_database()`); n != 0 {
		t.Errorf("%d advisory locks are left", n)
	}
}
