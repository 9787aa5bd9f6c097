package fence

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// explain adds what to do to errors of PostgreSQL that have one cure. Names stand in its messages in every language.
func explain(err error, cfg config) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	message := pg.Message
	switch {
	case pg.Code == "3F000" && strings.Contains(message, cfg.schema), // no such schema, function, table
		pg.Code == "42883" && strings.Contains(message, ".fence_"),
		pg.Code == "42P01" && strings.Contains(message, ".fences"):
		return fmt.Errorf("%w; %w: run migrations.Up in this database, for schema %q", err, ErrNotMigrated, cfg.schema)
	case pg.Code == "42501" && (strings.Contains(message, "fence_") || strings.HasSuffix(message, " "+cfg.schema)): // no right
		return fmt.Errorf("%w; let the owner of the schema run SELECT %s.grant_locker('the_role')", err, cfg.quoted())
	}
	return err
}

// explain knows the table as well.
func (t target) explain(err error, cfg config) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42703" && strings.Contains(pg.Message, t.token) { // no such column
		return fmt.Errorf("%w; a fenced table has a column for the token: ALTER TABLE %s ADD COLUMN %s bigint NOT NULL DEFAULT 0",
			err, t.table, quote(t.token))
	}
	return explain(err, cfg)
}
