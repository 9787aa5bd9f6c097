package pgtest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// A database that a test has left is given to a later one if it can be made as new, which costs a tenth of a new one and of
// the helpers' connection to it. Whether it is as new is not believed but compared. A test has its database alone: a late
// session of the one before could be taken for one of its own, so that what has been behind a proxy or a pooler, or whose
// sessions were ended by force, is never used again.

// idle are databases that are as new.
type idle struct {
	mu        sync.Mutex
	databases []*Database
}

func (i *idle) take() *Database {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.databases) == 0 {
		return nil
	}
	last := len(i.databases) - 1
	d := i.databases[last]
	i.databases = i.databases[:last]
	return d
}

func (i *idle) put(d *Database) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.databases = append(i.databases, d)
}

// close ends the connections to them, and drops them from a server that goes on.
func (i *idle) close() error {
	var errs []error
	for d := i.take(); d != nil; d = i.take() {
		errs = append(errs, d.discard())
	}
	return errors.Join(errs...)
}

// leave ends a test's use of its database.
func (d *Database) leave(t testing.TB) {
	if !t.Failed() && !d.spoiled.Load() && d.renew() {
		shared.idle.put(d)
		return
	}
	if err := d.discard(); err != nil {
		t.Errorf("pgtest: %v", err)
	}
}

// renew makes the database as it was when it was new, and reports whether it is. It removes rows, and tables,
// sequences and functions of the test's own; a test that changed more than these has used it up.
func (d *Database) renew() bool {
	var now string
	err := d.session.do(func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, restore, pgx.QueryExecModeSimpleProtocol, d.guard, d.token, d.forgotten); err != nil {
			return err
		}
		return conn.QueryRow(ctx, everything).Scan(&now)
	})
	return err == nil && now == d.asNew
}

// remember keeps what the database is like while it is new.
func (d *Database) remember(t testing.TB) {
	t.Helper()
	d.guard = Query[string](t, d, `SELECT g::text FROM pglock.guard g`)
	d.token = Query[int64](t, d, `SELECT last_value FROM pglock.fencing_token`)
	d.forgotten = Query[string](t, d, `SELECT f::text FROM pglock.fences f`)
	d.asNew = Query[string](t, d, everything)
}

// restore waits until nobody else is connected, and removes what tests put into a database. $1 is the guard's row, $2 the last token,
// $3 the row of the fences that were forgotten.
const restore = `DO $$
DECLARE
  every text[];
  one   text;
BEGIN
  PERFORM pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid();
  every := array(
    SELECT format('%s IF EXISTS %s', CASE relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, oid::regclass) FROM pg_class
      WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'S')
    UNION ALL SELECT format('ROUTINE IF EXISTS %s', oid::regprocedure) FROM pg_proc WHERE pronamespace = 'public'::regnamespace);
  FOREACH one IN ARRAY every LOOP
    EXECUTE format('DROP %s CASCADE', one);
  END LOOP;
END $$;
TRUNCATE pglock.leases, pglock.fences, pglock.waits, pglock.occurrences, pglock.guard;
INSERT INTO pglock.guard SELECT ($1::pglock.guard).*;
INSERT INTO pglock.fences SELECT ($3::pglock.fences).*;
SELECT setval('pglock.fencing_token', $2), pg_stat_reset();`

// everything is a hash of all that is in a database and in its settings, but for what TRUNCATE and statistics change, and for a mark that a trigger
// leaves.
const everything = `WITH objects (o) AS (
  SELECT (to_jsonb(c) - '{relfilenode,relpages,reltuples,relallvisible,relallfrozen,relfrozenxid,relminmxid,relhastriggers}'::text[])::text
    FROM pg_class c WHERE oid >= 16384
  UNION ALL SELECT x::text FROM pg_attribute x WHERE attrelid >= 16384
  UNION ALL SELECT x::text FROM pg_attrdef x
  UNION ALL SELECT x::text FROM pg_constraint x WHERE oid >= 16384
  UNION ALL SELECT x::text FROM pg_index x WHERE indexrelid >= 16384
  UNION ALL SELECT x::text FROM pg_trigger x
  UNION ALL SELECT x::text FROM pg_rewrite x WHERE oid >= 16384
  UNION ALL SELECT x::text FROM pg_policy x
  UNION ALL SELECT x::text FROM pg_proc x WHERE oid >= 16384
  UNION ALL SELECT x::text FROM pg_type x WHERE oid >= 16384
  UNION ALL SELECT x::text FROM pg_namespace x WHERE nspname !~ '^pg_(toast_)?temp_'
  UNION ALL SELECT x::text FROM pg_default_acl x
  UNION ALL SELECT x::text FROM pg_event_trigger x
  UNION ALL SELECT x::text FROM pg_extension x
  UNION ALL SELECT x::text FROM pg_language x
  UNION ALL SELECT x::text FROM pg_description x WHERE objoid >= 16384
  UNION ALL SELECT x::text FROM pg_depend x WHERE objid >= 16384 OR refobjid >= 16384
  UNION ALL SELECT x::text FROM pg_shdepend x JOIN pg_database d ON d.oid = dbid WHERE datname = current_database()
  UNION ALL SELECT x::text FROM pg_db_role_setting x JOIN pg_database d ON d.oid = setdatabase WHERE datname = current_database()
  UNION ALL SELECT (to_jsonb(d) - '{datfrozenxid,datminmxid}'::text[])::text FROM pg_database d WHERE datname = current_database()
  UNION ALL SELECT x::text FROM pglock.migrations x
  UNION ALL SELECT x::text FROM pglock.guard x
  UNION ALL SELECT (last_value, is_called)::text FROM pglock.fencing_token
  UNION ALL SELECT x::text FROM pglock.leases x
  UNION ALL SELECT x::text FROM pglock.fences x
  UNION ALL SELECT x::text FROM pglock.waits x
  UNION ALL SELECT x::text FROM pglock.occurrences x
) SELECT count(*) || ' ' || sum(hashtextextended(o, 0)) FROM objects`
