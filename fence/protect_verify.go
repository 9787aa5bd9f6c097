package fence

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// ErrUnprotected comes from [Verify] when a write could pass by the fence of a table, or would be refused for ever. It comes
// as an [*UnprotectedError], which says where.
var ErrUnprotected = errors.New("not protected")

// An UnprotectedError says what is wrong with the protection of a table. It matches [ErrUnprotected].
type UnprotectedError struct {
	Table    string
	Problems []string // each begins with the table or partition that it is about
	Cure     string   // the SQL that mends it
}

func (e *UnprotectedError) Error() string {
	return fmt.Sprintf("fence: %s is not protected: %s: run %s", e.Table, strings.Join(e.Problems, "; "), e.Cure)
}

// Is makes errors.Is find [ErrUnprotected].
func (e *UnprotectedError) Is(target error) bool { return target == ErrUnprotected }

// Verify returns nil if the whole of a table is protected as [Protect] or [ProtectRows] leaves it: on the table, its
// partitions and those that inherit from it, no trigger is missing, disabled, not ALWAYS, or another than it was. PostgreSQL
// gives a partition that is attached later only the triggers for rows, so TRUNCATE of it alone passes until the table is
// protected again; a new table that inherits has none. pg_dump keeps all of it, and pg_restore with --disable-triggers
// leaves the triggers enabled in another way: verify after a restore, and where a service starts.
//
// Anybody who may use the schema and has what grant_locker, grant_protector or grant_auditor gives may ask. It waits for
// nothing but the server, and changes nothing.
//
// Errors: [ErrUnprotected], [ErrInvalid], [ErrNotMigrated], or what PostgreSQL says, wrapped.
func Verify(ctx context.Context, db DB, table string, opts ...Option) error {
	name, cfg, err := checkProtect(db, "verify", table, opts)
	if err != nil {
		return err
	}
	found := &UnprotectedError{Table: table}
	sql := "SELECT pg_catalog.pg_backend_pid(), v.relation::text || ' ' || v.problem, v.cure FROM " + cfg.quoted() + ".verify($1::text::regclass) AS v"
	err = ask(ctx, db, sql, []any{name}, func(scan func(...any) error) error {
		var problem string
		if err := scan(&problem, &found.Cure); err != nil {
			return err
		}
		found.Problems = append(found.Problems, problem)
		return nil
	})
	switch {
	case err != nil:
		return explainProtect(fmt.Errorf("fence: verify %s: %w", table, err), cfg)
	case len(found.Problems) > 0:
		return found
	}
	return nil
}
