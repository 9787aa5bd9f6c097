package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// QuerierSQL is a *sql.DB, a *sql.Conn or a *sql.Tx.
type QuerierSQL interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// SQL lets a [Table] write through database/sql:
//
//	err := invoices.Update(ctx, fence.SQL(tx), lease.Grant(), fence.Row{"id": 7, "status": "paid"})
//
// It is meant for the driver of pgx (github.com/jackc/pgx/v5/stdlib); whether statements are prepared is that driver's setting
// (default_query_exec_mode), which behind a pooler in transaction mode must be one that prepares nothing by name. For whole
// transactions there are [TxSQL], [RaiseSQL], [HeldTxSQL] and [HoldSQL]. Of nil it makes nil, which every write refuses.
func SQL(db QuerierSQL) DB {
	if isNil(db) {
		return nil
	}
	return sqlDB{db}
}

type sqlDB struct{ q QuerierSQL }

func (d sqlDB) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	if _, ok := args[0].(pgx.QueryExecMode); ok { // which only pgx itself knows
		args = args[1:]
	}
	rows, err := d.q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return sqlRows{std: rows}, nil
}

func (d sqlDB) alone() bool {
	_, ok := d.q.(*sql.DB)
	return ok
}

// sqlRows has of pgx.Rows what this package uses.
type sqlRows struct {
	pgx.Rows // nil
	std      *sql.Rows
}

func (r sqlRows) Next() bool             { return r.std.Next() }
func (r sqlRows) Scan(dest ...any) error { return r.std.Scan(dest...) }
func (r sqlRows) Err() error             { return r.std.Err() }
func (r sqlRows) Close()                 { _ = r.std.Close() } // what it would say is in Err

// BeginnerSQL is a *sql.DB or a *sql.Conn.
type BeginnerSQL interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// TxSQL is [Tx] for database/sql.
func TxSQL(ctx context.Context, db BeginnerSQL, g Grant, resource string, f func(*sql.Tx) error, opts ...Option) error {
	var run func(sqlTx) error
	if f != nil {
		run = func(tx sqlTx) error { return f(tx.tx) }
	}
	return raisedTx(ctx, ofSQL(db), g, resource, run, opts)
}

// RaiseSQL is [Raise] for database/sql.
func RaiseSQL(ctx context.Context, tx *sql.Tx, g Grant, resource string, opts ...Option) error {
	return raiseIn(ctx, overSQL(tx), g, resource, opts)
}

// HeldTxSQL is [HeldTx] for database/sql.
func HeldTxSQL(ctx context.Context, db BeginnerSQL, g Grant, f func(context.Context, *sql.Tx) error, opts ...Option) error {
	var run func(context.Context, sqlTx) error
	if f != nil {
		run = func(ctx context.Context, tx sqlTx) error { return f(ctx, tx.tx) }
	}
	return heldTx(ctx, ofSQL(db), g, run, opts)
}

// HoldSQL is [Hold] for database/sql.
func HoldSQL(ctx context.Context, tx *sql.Tx, g Grant, opts ...Option) error {
	return holdIn(ctx, overSQL(tx), g, opts)
}

// overSQL keeps a nil transaction nil.
func overSQL(tx *sql.Tx) DB {
	if tx == nil {
		return nil
	}
	return sqlDB{tx}
}

// sqlTx is a transaction of database/sql, which ends with the ctx that it was begun with.
type sqlTx struct {
	sqlDB
	tx *sql.Tx
}

var errNotSent = errors.New("not sent")

func (t sqlTx) Commit(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", errNotSent, context.Cause(ctx))
	}
	err := t.tx.Commit()
	if errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("%w: %w", errNotSent, err)
	}
	return err
}

func (t sqlTx) Rollback(context.Context) error { return t.tx.Rollback() }

// levelsSQL are the levels of pgx in database/sql.
var levelsSQL = map[pgx.TxIsoLevel]sql.IsolationLevel{
	"": sql.LevelDefault, pgx.Serializable: sql.LevelSerializable, pgx.RepeatableRead: sql.LevelRepeatableRead,
	pgx.ReadCommitted: sql.LevelReadCommitted, pgx.ReadUncommitted: sql.LevelReadUncommitted,
}

func ofSQL(db BeginnerSQL) starter[sqlTx] {
	return starter[sqlTx]{db: db, begin: func(ctx context.Context, cfg config, _ question) (sqlTx, pgx.BatchResults, bool, error) {
		tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: levelsSQL[cfg.isolation]})
		return sqlTx{sqlDB{tx}, tx}, nil, false, err
	}}
}
