package pgtest_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// Not parallel: no other test takes the database between two of this one.
func TestADatabaseIsUsedAgainWhereItIsAsNewOnly(t *testing.T) {
	use := func(what string, f func(*testing.T, *pgtest.Database)) (name string) {
		t.Run(what, func(t *testing.T) {
			d := pgtest.DB(t)
			name = d.Name
			if f != nil {
				f(t, d)
			}
		})
		return name
	}
	const state = `SELECT concat((SELECT g FROM pglock.guard g), (SELECT s.last_value FROM pglock.fencing_token s),
		to_regclass('mine'), (SELECT count(*) FROM pglock.leases), (SELECT count(*) FROM pglock.fences))`
	var before string
	var left *pgxpool.Pool
	first := use("rows, tables, functions", func(t *testing.T, d *pgtest.Database) {
		before = pgtest.Query[string](t, d, state)
		d.Exec(t, `CREATE TABLE mine (id serial); CREATE TABLE other (); CREATE SEQUENCE numbers;
			CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
			CREATE TRIGGER f BEFORE UPDATE ON pglock.leases FOR EACH ROW EXECUTE FUNCTION f();
		 UPDATE pglock.guard SET bumps = 7;
			SELECT pglock.acquire(ARRAY['a'], ARRAY[gen_random_uuid()], 'test', ARRAY[5000000::bigint]);
			SELECT pglock.fence_raise('r', 'a', 0, 1)`)
		var err error
		if left, err = pgxpool.New(t.Context(), d.URL); err != nil {
			t.Fatal(err)
		}
		if err := left.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	defer left.Close()
	second := use("the next", func(t *testing.T, d *pgtest.Database) {
		if after := pgtest.Query[string](t, d, state); after != before {
			t.Errorf("in the next test: %s\nin a new database: %s", after, before)
		}
		if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()`); n != 1 {
			t.Errorf("%d sessions in it, want that of the helpers only", n)
		}
	})
	if second != first {
		t.Fatalf("the next test got %s, want %s again", second, first)
	}
	for what, change := range map[string]func(*testing.T, *pgtest.Database){
		"a column": func(t *testing.T, d *pgtest.Database) { d.Exec(t, `ALTER TABLE pglock.leases ADD COLUMN more int`) },
		"a function": func(t *testing.T, d *pgtest.Database) {
			d.Exec(t, `ALTER FUNCTION pglock.fence_root(oid) SET work_mem = '1MB'`)
		},
		"a right":      func(t *testing.T, d *pgtest.Database) { d.Exec(t, `GRANT SELECT ON pglock.leases TO PUBLIC`) },
		"a version":    func(t *testing.T, d *pgtest.Database) { d.Exec(t, `DELETE FROM pglock.migrations WHERE version = 4`) },
		"a setting":    func(t *testing.T, d *pgtest.Database) { d.Exec(t, `ALTER DATABASE `+d.Name+` SET work_mem = '1MB'`) },
		"a proxy":      func(t *testing.T, d *pgtest.Database) { pgtest.NewProxy(t, d) },
		"its backends": func(t *testing.T, d *pgtest.Database) { d.KillBackends(t, "true") },
	} {
		changed := use(what, change)
		if next := use("after "+what, nil); next == changed {
			t.Errorf("a database is used again after a test has changed %s", what)
		}
	}
}
