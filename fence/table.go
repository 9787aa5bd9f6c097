package fence

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// A Table is a table of the user whose rows carry the token of the grant that has written them last, in a column of type
// bigint:
//
//	ALTER TABLE invoices ADD COLUMN fencing_token bigint NOT NULL DEFAULT 0
//
// NULL counts as 0. The role needs SELECT and the right of the verb (UPDATE as well for Insert, to lock the row that is in
// its way), and what grant_locker gives. A Table is a value; it may be copied and used by any number of goroutines.
//
// Each method is one statement, which may be part of a larger transaction. It blocks while another transaction writes the
// same row or holds its key, until ctx ends. After an error nothing was written by it: the statement is done whole or not
// at all. Where the connection was lost nobody knows; send the same write again, and [ErrAlreadyWritten] says that the first
// one has arrived.
//
// Errors: [ErrStale], [ErrAlreadyWritten], [ErrNeverGranted], [ErrNoToken], [ErrInvalid], [ErrNotMigrated], those of the
// method, or what PostgreSQL says, wrapped: 40001 from a transaction at repeatable read or serializable that began too
// early, 40P01 from two that wrote the same rows in different orders. Write rows of one transaction in a fixed order.
type Table struct {
	// Name is written as in SQL: invoices, billing.invoices, "Odd Name"."invoices". Without a schema, the connection's
	// search_path finds it. Name the same table in every write: not a view of it here and itself there.
	Name string

	// Key holds the columns of its primary key, or of another unique key without NULLs, by their exact names, in any order.
	// The types need a hash, as nearly all have.
	//
	// Name the same key in every write. A deleted row is remembered by it, and by nothing else: where one writer deletes by
	// id, another that inserts by mail is not refused. Before a key column is renamed or the key is changed, let what was
	// written under earlier leases come to an end.
	Key []string

	// TokenColumn is the exact name of the column for the token; fencing_token if empty.
	TokenColumn string
}

// A Row holds values by the exact names of their columns: the key's, and those to write. A nil is NULL.
type Row map[string]any

// DB is what a fenced write is sent over: a *pgx.Conn, a *pgxpool.Pool or a pgx.Tx. Nothing is ever prepared by name, so a
// pooler in transaction mode may stand in between.
type DB interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Update writes the columns of row, other than the key, if no later token has written or deleted it.
//
// Errors beside the common ones: [ErrNoRow].
func (t Table) Update(ctx context.Context, db DB, g Grant, row Row, opts ...Option) error {
	return t.write(ctx, db, g, update, row, opts)
}

// Insert adds a row, if no later token has written or deleted one with its key.
//
// Errors beside the common ones: [ErrRowExists].
func (t Table) Insert(ctx context.Context, db DB, g Grant, row Row, opts ...Option) error {
	return t.write(ctx, db, g, insert, row, opts)
}

// Upsert adds a row, or writes its columns if it is there, if no later token has written or deleted it.
func (t Table) Upsert(ctx context.Context, db DB, g Grant, row Row, opts ...Option) error {
	return t.write(ctx, db, g, upsert, row, opts)
}

// Delete removes a row, if no later token has written it. key holds the columns of the key and nothing else. It leaves the
// token behind, so that an earlier one cannot bring the row back. With [Again] it also returns nil if this grant has deleted
// the row before. One that finds no row leaves nothing behind.
//
// Errors beside the common ones: [ErrNoRow].
func (t Table) Delete(ctx context.Context, db DB, g Grant, key Row, opts ...Option) error {
	return t.write(ctx, db, g, remove, key, opts)
}
