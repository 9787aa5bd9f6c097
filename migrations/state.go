package migrations

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// A state is what a role can see of an installation, without any lock and without a right to anything.
type state struct {
	schema, role, database string
	standby                bool

	mayCreateSchema bool // in the database
	schemaExists    bool
	made            bool // by the files
	mayUse          bool // the schema
	mayCreate       bool // in the schema

	table   bool   // migrations is there
	ours    bool   // and has the columns of ours
	mayRead bool   // it
	owns    bool   // it, or is a member of its owner
	owner   string // of it

	maySettings bool // read what it was installed with

	records []record // what migrations holds
}

type record struct {
	version int64
	sha256  string
}

// look reads the catalog, which everybody may, and asks for nothing that the role may not read: an error would say less
// than the answers do.
const look = `
SELECT current_user::text, current_database()::text, pg_is_in_recovery(),
       has_database_privilege(current_database(), 'CREATE'), n.oid IS NOT NULL,
       coalesce(obj_description(n.oid, 'pg_namespace') = 'made by fencedlock', false),
       coalesce(has_schema_privilege(n.oid, 'USAGE'), false), coalesce(has_schema_privilege(n.oid, 'CREATE'), false),
       m.oid IS NOT NULL,
       2 = (SELECT count(*) FROM pg_attribute a WHERE a.attrelid = m.oid AND a.attname IN ('version', 'sha256') AND NOT a.attisdropped),
       coalesce(has_table_privilege(m.oid, 'SELECT'), false),
       coalesce(pg_has_role(m.relowner, 'USAGE'), false), coalesce(pg_get_userbyid(m.relowner)::text, ''),
       EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = n.oid AND p.proname = 'installation' AND p.pronargs = 0
                 AND has_function_privilege(p.oid, 'EXECUTE'))
  FROM (VALUES ($1)) w(schema)
  LEFT JOIN pg_namespace n ON n.nspname::text = w.schema
  LEFT JOIN pg_class m ON m.relnamespace = n.oid AND m.relname = 'migrations'`

// readState looks at the installation in a schema.
func readState(ctx context.Context, tx pgx.Tx, schema string) (state, error) {
	s := state{schema: schema}
	err := tx.QueryRow(ctx, look, simple, schema).Scan(&s.role, &s.database, &s.standby, &s.mayCreateSchema, &s.schemaExists,
		&s.made, &s.mayUse, &s.mayCreate, &s.table, &s.ours, &s.mayRead, &s.owns, &s.owner, &s.maySettings)
	if err != nil || !s.table {
		return s, err
	}
	if !s.ours {
		return s, fmt.Errorf("schema %q has a table migrations that is not of this library: choose another schema", schema)
	}
	if !s.mayUse || !s.mayRead {
		return s, s.cannotRead()
	}
	rows, err := tx.Query(ctx, render("SELECT version, sha256 FROM pglock.migrations ORDER BY version", schema), simple)
	if err != nil {
		return s, err
	}
	s.records, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r record, err error) {
		return r, row.Scan(&r.version, &r.sha256)
	})
	return s, err
}

// applied says how many of the files are applied. Versions that are not among them were applied by a newer version of the
// library, which keeps what older ones need while both run: they do not count.
func (s state) applied(files []file) (int, error) {
	if s.table && len(s.records) == 0 {
		return 0, fmt.Errorf("%w: schema %q has the tables, and its table migrations is empty. If the files %s were run by hand, record them: %s",
			ErrUnrecorded, s.schema, names(files), s.recordSQL(files))
	}
	sums := make(map[int64]string, len(s.records))
	for _, r := range s.records {
		sums[r.version] = r.sha256
	}
	n := 0
	for i, f := range files {
		sum, ok := sums[f.version]
		switch {
		case !ok:
			continue
		case n < i:
			return 0, fmt.Errorf("%w: schema %q has a record of %s and none of %s. If that was run by hand, record it: %s",
				ErrUnrecorded, s.schema, f.name, files[n].name, s.recordSQL(files[n:i]))
		case sum != f.sha256():
			return 0, fmt.Errorf("%w: %s in schema %q has SHA-256 %.12s…, this version of the library has %.12s…. "+
				"While nobody holds a lock, %s",
				ErrChanged, f.name, s.schema, sum, f.sha256(), s.removal())
		}
		n++
	}
	if n < len(files) && len(s.records) > n {
		return 0, fmt.Errorf("%w: schema %q has a record of version %d and none of %s",
			ErrUnrecorded, s.schema, s.records[len(s.records)-1].version, files[n].name)
	}
	return n, nil
}

// settings reads what the schema was installed with; false where the role may not.
func (s state) settings(ctx context.Context, tx pgx.Tx) (longest time.Duration, single, ok bool, err error) {
	if !s.maySettings || !s.mayUse {
		return 0, false, false, nil
	}
	var us int64
	err = tx.QueryRow(ctx, render("SELECT cap_us, single_node FROM pglock.installation()", s.schema), simple).Scan(&us, &single)
	return time.Duration(us) * time.Microsecond, single, err == nil, err
}

func names(files []file) string {
	var list []string
	for _, f := range files {
		list = append(list, f.name)
	}
	return strings.Join(list, ", ")
}

// checkSettings compares the settings that were asked for with the installed ones.
func (c config) checkSettings(ctx context.Context, tx pgx.Tx, s state) error {
	longest, single, ok, err := s.settings(ctx, tx)
	if err != nil || !ok {
		return err // who may not read them has not installed it either
	}
	var errs []error
	if c.cap != 0 && c.cap != longest {
		errs = append(errs, fmt.Errorf("%w: schema %q has cap %v, not %v. %s", ErrSettings, s.schema, longest, c.cap, s.capSQL(longest, c.cap)))
	}
	if c.single && !single {
		errs = append(errs, fmt.Errorf("%w: schema %q is not declared single-node. If its server has no standby and is never restored from a snapshot: "+
			"%s", ErrSettings, s.schema, render("SELECT pglock.declare_single_node(true)", s.schema)))
	}
	return errors.Join(errs...)
}
