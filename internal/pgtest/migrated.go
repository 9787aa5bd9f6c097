package pgtest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/migrations"
)

// DB returns a migrated database of the test's own on the shared server: a copy of a template that is migrated once, or one
// that an earlier test has left and that is again as such a copy.
func DB(t testing.TB) *Database {
	t.Helper()
	if d := shared.idle.take(); d != nil {
		t.Cleanup(func() { d.leave(t) })
		return d
	}
	d := Copy(t)
	d.ownGuard(t)
	d.remember(t)
	d.spoiled.Store(false)
	return d
}

// Copy is DB without what makes the copy an original: its guard still names the template, as that of a restored backup
// names the database that was backed up, so the first acquisition finds a restored copy.
func Copy(t testing.TB) *Database {
	t.Helper()
	s := shared.get(t)
	template, err := shared.migrated()
	if err != nil {
		t.Fatalf("pgtest: make the template: %v", err)
	}
	d := copyOf(t, s, template)
	d.spoiled.Store(true)
	return d
}

// newMigrated makes a migrated database and leaves nobody connected to it: a database in use cannot be copied.
func newMigrated(s *pgtemp.Server, name string) error {
	admin := session{url: s.URL("postgres")}
	defer admin.close()
	if err := admin.do(create(name, "template1")); err != nil {
		return err
	}
	return migrate(s.URL(name))
}

// migrate applies the library's schema.
func migrate(url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	return migrations.Up(ctx, pool)
}

// ownGuard tells the guard of a copy that it is at home.
func (d *Database) ownGuard(t testing.TB) {
	t.Helper()
	d.Exec(t, `UPDATE pglock.guard SET database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
}

// Age moves a lock's past further into the past, instead of waiting: what was to end within by is over now.
func (d *Database) Age(t testing.TB, lock string, by time.Duration) {
	t.Helper()
	d.do(t, func(ctx context.Context, conn *pgx.Conn) error {
		tag, err := conn.Exec(ctx, `UPDATE pglock.leases
			SET granted_at = granted_at - $2::interval, expires_at = expires_at - $2::interval, not_before = not_before - $2::interval
			WHERE name = $1`, lock, by)
		if err == nil && tag.RowsAffected() == 0 {
			t.Fatalf("pgtest: no lease %q to age", lock)
		}
		return err
	})
}
