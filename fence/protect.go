package fence

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// Protect makes a table refuse every write of a transaction that has stated no grant, or a stale one: INSERT, UPDATE,
// DELETE, MERGE, COPY, TRUNCATE, cascades, writes to a partition, from psql, another language or an old program, and under
// session_replication_role = replica. The table has one fence, of the lock that writes first; [ProtectRows] gives each key
// its own. A transaction states its grant with [State]; [Tx], [Raise], [HeldTx] and [Hold] do it by themselves. What a
// refused write comes back with, [Explain] translates.
//
// It covers all partitions and tables that inherit, and what stands in them already. Called again it completes what is
// missing, which [Verify] finds. It only calls the SQL function protect: a migration can say SELECT
// pglock.protect('invoices'), which is part of its transaction, as this is of a pgx.Tx. The role owns the tables, and has
// what grant_protector gives.
//
// It blocks while transactions that write to the table are open, and keeps new ones waiting behind it, as CREATE TRIGGER does
// (SHARE ROW EXCLUSIVE; reads go on): set a lock_timeout. After an error nothing was changed.
//
// A write waits while another grant's transaction that has written is open. Its statement may have begun to read before
// that: at read committed it finds the newest rows that it changes, not always the others. What must read all that earlier
// grants left runs in [Tx], or begins with a statement that writes no row (DELETE FROM invoices WHERE false). Repeatable
// read and serializable transactions that began too early fail with 40001.
//
// For a table without partitions it costs some 30 µs for each statement and nothing for its rows; with partitions, 10 µs or
// so for each row (BenchmarkTriggers).
//
// It stops mistakes and late writers, and a role that may only write to the table. Around it go a superuser; the owner, who
// can disable and drop triggers, and rewrite, detach or drop the table; and whoever has the TRIGGER privilege on it, which
// GRANT ALL gives, and can replace the triggers. Any role may state any token that was drawn. Logical replication states
// nothing: at a subscriber the triggers for rows stop it, so leave tables unprotected there.
//
// Errors: [ErrInvalid] for a view, a foreign table, a partition, a table of this library's, or one that is protected in another way;
// [ErrNotMigrated]; [ErrReadOnly]; or what PostgreSQL says, wrapped.
func Protect(ctx context.Context, db DB, table string, opts ...Option) error {
	return install(ctx, db, "protect", table, opts, `($1::text::regclass)`)
}

// ProtectRows is [Protect] with a fence for each value of a key: writers of different rows need not hold the same lock, and
// do not wait for each other. key is an SQL expression over the row's columns, such as customer_id, lower(email) or tenant
// || '/' || id::text. It must be immutable, as in an index, and hashable. It is parsed now and evaluated as the table's
// owner. All rows whose key is NULL share a fence.
//
// An UPDATE that changes the key needs the fences of both values, so both must belong to the lock. TRUNCATE is refused:
// DELETE, or [Unprotect] first. Each row that is written costs 10 to 20 µs, and each value of the key a row in the fences,
// until pglock.Client.PruneFences forgets it. A statement that writes no row raises no fence. The fences are raised at the end of the statement, in the order
// of its rows, so two grants that write the same rows in different orders may meet in 40P01. A table with a key wants to be
// unprotected before it is dropped: two functions fencedlock_… in its schema would stay. After a key's column was altered,
// call this again. In a database restored from a dump of pg_dump, a key that is or has an enum begins anew: it is hashed by an id that
// a dump does not keep.
//
// Errors: those of Protect, and ErrInvalid for a key of another kind.
func ProtectRows(ctx context.Context, db DB, table, key string, opts ...Option) error {
	if key == "" || !storable(key) {
		return fmt.Errorf("fence: protect %s: %w key %q: want an expression over its columns, such as customer_id", table, ErrInvalid, key)
	}
	return install(ctx, db, "protect", table, opts, `($1::text::regclass, $2::text)`, key)
}

// Unprotect takes away what [Protect] or [ProtectRows] has installed, on all partitions too, and returns nil if nothing was
// there. The fences stay, so that a table that is protected again in the same way goes on from the tokens it has seen. It
// blocks as Protect does. After an error nothing was changed.
//
// Errors: [ErrInvalid] for a partition, [ErrNotMigrated], [ErrReadOnly], or what PostgreSQL says, wrapped.
func Unprotect(ctx context.Context, db DB, table string, opts ...Option) error {
	return install(ctx, db, "unprotect", table, opts, `($1::text::regclass)`)
}

func install(ctx context.Context, db DB, verb, table string, opts []Option, params string, more ...any) error {
	name, cfg, err := checkProtect(db, verb, table, opts)
	if err != nil {
		return err
	}
	var triggers int
	sql := "SELECT pg_catalog.pg_backend_pid(), " + cfg.quoted() + "." + verb + params
	if err := one(ctx, db, sql, append([]any{name}, more...), &triggers); err != nil {
		return explainProtect(fmt.Errorf("fence: %s %s: %w", verb, table, err), cfg)
	}
	return nil
}

// checkProtect refuses bad input before any SQL.
func checkProtect(db DB, verb, table string, opts []Option) (name string, _ config, _ error) {
	what := verb + " " + table
	cfg, err := resolve(Grant{}, opts)
	if err == nil {
		err = cfg.refuse(what, use{})
	}
	switch {
	case err != nil:
		return "", cfg, err
	case isNil(db):
		return "", cfg, fmt.Errorf("fence: %s: %w: nil database", what, ErrInvalid)
	}
	name, err = parseName(table)
	return name, cfg, err
}

// explainProtect adds what to do.
func explainProtect(err error, cfg config) error {
	var pg *pgconn.PgError
	switch {
	case !errors.As(err, &pg):
		return err
	case pg.Code == "42501" && pg.Routine == "aclcheck_error" && // of the schema or its functions; not of the table
		(bare(pg.Message, cfg.schema) || bare(pg.Message, "protect") || bare(pg.Message, "unprotect") || bare(pg.Message, "verify")):
		return fmt.Errorf("%w; let the owner of the schema run SELECT %s.grant_protector('the_role')", err, cfg.quoted())
	}
	if pg.Hint != "" {
		err = fmt.Errorf("%w. %s", err, pg.Hint)
	}
	switch pg.Code {
	case "22023", "42809", "42710", // what protect itself refuses
		"42P17", "42704", "42P20", "42803", "0A000": // what a key cannot be
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return explain(err, cfg)
}
