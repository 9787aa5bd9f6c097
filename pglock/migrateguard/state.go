package migrateguard

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/migrations"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/fencedlock/fencedlock/pglock/advisory"
)

// A state is where a database is.
type state struct {
	schema  string // of the version table
	table   string
	current string // the first schema of the search_path
	role    string
	standby bool
	server  string // when it was started, which tells it from others
	exists  bool   // the version table
	version int    // -1 for nothing
	dirty   bool
}

// readState looks at the version table in a schema; "" is for the first one of the search_path. Once it was found a runner names it: a
// migration, or one of another runner, may make a schema that comes before it, and there it would seem that nothing was run yet.
func (g *Guard) readState(ctx context.Context, conn *pgx.Conn, schema string) (state, error) {
	s := state{table: g.cfg.Table, version: -1}
	var schemaExists bool
	err := conn.QueryRow(ctx, `SELECT w.schema, coalesce(pg_catalog.current_schema()::text, ''), current_user::text, pg_catalog.pg_is_in_recovery(),
    extract(epoch FROM pg_catalog.pg_postmaster_start_time())::text, n.oid IS NOT NULL, c.oid IS NOT NULL
  FROM (SELECT coalesce(nullif($1::text, ''), pg_catalog.current_schema()::text, '') AS schema) w
  LEFT JOIN pg_catalog.pg_namespace n ON n.nspname::text OPERATOR(pg_catalog.=) w.schema
  LEFT JOIN pg_catalog.pg_class c ON c.relnamespace OPERATOR(pg_catalog.=) n.oid AND c.relname::text OPERATOR(pg_catalog.=) $2::text`,
		schema, g.cfg.Table).Scan(&s.schema, &s.current, &s.role, &s.standby, &s.server, &schemaExists, &s.exists)
	switch {
	case err != nil:
		return s, err
	case s.schema == "":
		return s, fmt.Errorf("%w: no schema of the search_path exists: set Config.Schema, or create the schema", ErrInvalid)
	case !schemaExists:
		return s, fmt.Errorf("%w: schema %q of the version table does not exist: create it, or set another Config.Schema", ErrInvalid, s.schema)
	case !s.exists:
		return s, nil
	}
	rows, err := conn.Query(ctx, "SELECT version, dirty FROM "+s.quoted()+" LIMIT 1")
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&s.version, &s.dirty}, func() error { return nil })
	}
	switch state := sqlState(err); {
	case state == "42703", state == "42809":
		return s, fmt.Errorf("%w: %s is no version table of golang-migrate, so somebody else's: set another Config.Table (%w)", ErrInvalid, s.quoted(), err)
	case err != nil:
		return s, fmt.Errorf("read the version in %s: %w", s.quoted(), s.forbidden("SELECT", err))
	}
	return s, nil
}

// forbidden adds to a refusal what PostgreSQL's message leaves out: who may not, and the SQL that allows it. With no rights named, it is the
// version table that could not be made.
func (s state) forbidden(rights string, err error) error {
	if sqlState(err) != "42501" {
		return err
	}
	role, schema := pgx.Identifier{s.role}.Sanitize(), pgx.Identifier{s.schema}.Sanitize()
	grant := fmt.Sprintf("GRANT USAGE, CREATE ON SCHEMA %s TO %s", schema, role)
	if rights != "" {
		grant = fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s; GRANT %s ON %s TO %s", schema, role, rights, s.quoted(), role)
	}
	return fmt.Errorf("%w: role %q lacks rights on the version table or its schema. As its owner: %s (%w)", migrations.ErrPrivilege, s.role, grant, err)
}

// refuse says why this server cannot be migrated.
func (s state) refuse() error {
	if s.standby {
		return fmt.Errorf("%w: it is a standby, and migrations are pending: connect to the primary (target_session_attrs=read-write)", pglock.ErrReadOnly)
	}
	return nil
}

func (s state) quoted() string { return pgx.Identifier{s.schema, s.table}.Sanitize() }

// lockName is what the lease is on: one for each version table.
func (s state) lockName() string { return "migrate " + s.quoted() }

// key is the session lock of the same.
func (s state) key() advisory.Key { return advisory.Name("migrateguard", s.schema, s.table) }
