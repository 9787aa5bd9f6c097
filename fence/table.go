package fence

import "context"

// A Table is a table of the user whose rows carry the token of the grant that has written them last, in a column of type
// bigint:
//
//	ALTER TABLE invoices ADD COLUMN fencing_token bigint NOT NULL DEFAULT 0
//
// NULL counts as 0. A write whose token or key a trigger of the table replaces is refused (22023). The role needs SELECT and the right of the verb (UPDATE as well for Insert, to lock the row that is in
// its way), and what grant_locker gives. A Table is a value; it may be copied and used by any number of goroutines.
//
// Each method is one statement in one round trip, which may be part of a larger transaction. It blocks while another transaction writes the
// same row or holds its key, until ctx ends. After an error nothing was written by it: the statement is done whole or not
// at all. Where the connection was lost nobody knows; send the same write again, and [ErrAlreadyWritten] says that the first
// one has arrived.
//
// A row is of one lock. The holders of a semaphore's permits work beside each other, and a row says nothing of the permit: give each
// its own rows, or use HeldTx. A permit's lease is not ended when a row refuses it.
//
// Errors: [ErrStale], [ErrAlreadyWritten], [ErrNeverGranted], [ErrNoToken], [ErrInvalid], [ErrNotMigrated], [ErrReadOnly], those of the
// method, or what PostgreSQL says, wrapped: 40001 from a transaction at repeatable read or serializable that began too
// early, 40P01 from two that wrote the same rows in different orders. Write rows of one transaction in a fixed order.
type Table struct {
	// Name is written as in SQL: invoices, billing.invoices, "Odd Name"."invoices". Without a schema, the connection's
	// search_path finds it. Name the same table in every write: not a view of it here and itself there.
	//
	// A view will do where SELECT FOR UPDATE locks the rows beneath it. Over a UNION, a WITH, a function or scalar subqueries it locks
	// nothing and says nothing: if such a view is written by an INSTEAD OF trigger or a rule, a stale writer that had to wait for a
	// later one is let in. Fence the tables beneath it.
	Name string

	// Key holds the columns of its primary key, or of another unique key without NULLs, by their exact names, in any order.
	// The types need a hash, as nearly all have. An enum is hashed by an id that pg_dump does not keep: in a database restored from
	// its dump, a row that was deleted before is not remembered if an enum is part of its key.
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

// Update writes the columns of row, other than the key, if no later token has written or deleted it.
//
// Errors beside the common ones: [ErrNoRow].
func (t Table) Update(ctx context.Context, db DB, g Grant, row Row, opts ...Option) error {
	return t.write(ctx, db, g, update, []Row{row}, opts)
}

// Insert adds a row, if no later token has written or deleted one with its key.
//
// Errors beside the common ones: [ErrRowExists].
func (t Table) Insert(ctx context.Context, db DB, g Grant, row Row, opts ...Option) error {
	return t.write(ctx, db, g, insert, []Row{row}, opts)
}

// Upsert adds a row, or writes its columns if it is there, if no later token has written or deleted it.
func (t Table) Upsert(ctx context.Context, db DB, g Grant, row Row, opts ...Option) error {
	return t.write(ctx, db, g, upsert, []Row{row}, opts)
}

// Delete removes a row, if no later token has written it. key holds the columns of the key and nothing else. It leaves the
// token behind, so that an earlier one cannot bring the row back. With [Again] it also returns nil if this grant has deleted
// the row before. One that finds no row leaves nothing behind.
//
// Errors beside the common ones: [ErrNoRow].
func (t Table) Delete(ctx context.Context, db DB, g Grant, key Row, opts ...Option) error {
	return t.write(ctx, db, g, remove, []Row{key}, opts)
}

// UpdateRows is Update for several rows, all of them or none. They have the same columns, and are 1 to 1000; more can be written
// in one transaction by calls in the order of their keys. The error is of the first row that is refused.
func (t Table) UpdateRows(ctx context.Context, db DB, g Grant, rows []Row, opts ...Option) error {
	return t.write(ctx, db, g, update, rows, opts)
}

// InsertRows is Insert for several rows, as UpdateRows is Update.
func (t Table) InsertRows(ctx context.Context, db DB, g Grant, rows []Row, opts ...Option) error {
	return t.write(ctx, db, g, insert, rows, opts)
}

// UpsertRows is Upsert for several rows, as UpdateRows is Update.
func (t Table) UpsertRows(ctx context.Context, db DB, g Grant, rows []Row, opts ...Option) error {
	return t.write(ctx, db, g, upsert, rows, opts)
}

// DeleteRows is Delete for several rows, as UpdateRows is Update.
func (t Table) DeleteRows(ctx context.Context, db DB, g Grant, keys []Row, opts ...Option) error {
	return t.write(ctx, db, g, remove, keys, opts)
}

// Rekey gives a row another key: a Delete of the one and an Insert of the other at once. Both hold the columns of the key and
// nothing else. It is refused if a later token has written or deleted either; afterwards an earlier token can neither write the
// row under its new key nor bring it back under the old one.
//
// Errors beside the common ones: [ErrNoRow], [ErrRowExists]; in a transaction also PostgreSQL's 23505, where the row at the new
// key came while this one waited.
func (t Table) Rekey(ctx context.Context, db DB, g Grant, key, to Row, opts ...Option) error {
	return t.write(ctx, db, g, rekey, []Row{key, to}, opts)
}
