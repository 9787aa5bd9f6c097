package once

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/pglock"
)

// Tx is [Runner.Run] for a job that writes to the database of the locks and does nothing else: exactly once. f runs in a transaction that
// holds the lease (fence.HeldTx), and the record of its success is written in that very transaction, so that there is the one
// if and only if there is the other. If it does not commit, because f has failed or for any other reason, the occurrence has
// failed and nothing was written.
//
// f writes through the transaction that it is given, uses the ctx that it is given, and neither commits nor ends the transaction: if it
// does all the same, by a script with a COMMIT, say, the occurrence has failed, and what was committed stands. db
// is most often the pool that the Runner has. The transaction has a limit, a minute unless [Held] says otherwise.
//
// It blocks and fails as Run does, and as fence.HeldTx does; a conflict of transactions (40001) is a failure like any other, for Retry. A commit whose answer was lost is looked up in the record, and so is
// no error if it came to pass. Its commit is on the disk before Tx says so, though the session has synchronous_commit off.
func (r *Runner) Tx(ctx context.Context, db fence.Beginner, job string, due time.Time, f func(context.Context, pgx.Tx) error, opts ...Option) error {
	o, cfg, err := check(job, due, opts)
	switch {
	case err != nil:
		return err
	case f == nil:
		return o.invalid("nothing to run")
	}
	err = o.checkTx(db, func(g fence.Grant) error {
		return fence.HeldTx(ctx, untouched{db}, g, func(context.Context, pgx.Tx) error { return nil }, cfg.held...)
	})
	if err != nil {
		return err
	}
	cfg.inTx = true
	return r.attempt(ctx, o, cfg, func(ctx context.Context, l *pglock.Lease) (bool, error) {
		err := fence.HeldTx(ctx, db, l.Grant(), func(ctx context.Context, tx pgx.Tx) error {
			if err := f(ctx, tx); err != nil {
				return err
			}
			return r.endTx(ctx, tx, o, l)
		}, cfg.held...)
		return err == nil, because(ctx, err)
	})
}

// TxSQL is [Runner.Tx] for database/sql.
func (r *Runner) TxSQL(ctx context.Context, db fence.BeginnerSQL, job string, due time.Time, f func(context.Context, *sql.Tx) error, opts ...Option) error {
	o, cfg, err := check(job, due, opts)
	switch {
	case err != nil:
		return err
	case f == nil:
		return o.invalid("nothing to run")
	}
	err = o.checkTx(db, func(g fence.Grant) error {
		return fence.HeldTxSQL(ctx, untouchedSQL{}, g, func(context.Context, *sql.Tx) error { return nil }, cfg.held...)
	})
	if err != nil {
		return err
	}
	cfg.inTx = true
	return r.attempt(ctx, o, cfg, func(ctx context.Context, l *pglock.Lease) (bool, error) {
		err := fence.HeldTxSQL(ctx, db, l.Grant(), func(ctx context.Context, tx *sql.Tx) error {
			if err := f(ctx, tx); err != nil {
				return err
			}
			return r.endTx(ctx, fence.SQL(tx), o, l)
		}, cfg.held...)
		return err == nil, because(ctx, err)
	})
}

// because adds to the error of a transaction why its ctx had ended: of that a driver only says that it was cancelled.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// checkTx refuses what the transaction would: before the occurrence is begun, which would have failed for good. held is the transaction
// on a database that is left untouched.
func (o occurrence) checkTx(db any, held func(fence.Grant) error) error {
	if isNil(db) {
		return o.invalid("no database to write to")
	}
	if err := held(fence.Grant{Lock: o.lock(), Token: 1}); !errors.Is(err, errUntouched) {
		return fmt.Errorf("%w: %v: %w", ErrInvalid, o, err)
	}
	return nil
}

// untouched is a database for what is refused before it is reached. It shows the connection, which may be in a transaction.
type (
	untouched    struct{ db fence.Beginner }
	untouchedSQL struct{}
)

var errUntouched = errors.New("reached")

func (untouched) BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error) { return nil, errUntouched }

func (u untouched) Conn() *pgx.Conn {
	switch x := u.db.(type) {
	case *pgx.Conn:
		return x
	case interface{ Conn() *pgx.Conn }: // a pool's connection
		return x.Conn()
	}
	return nil
}

func (untouchedSQL) BeginTx(context.Context, *sql.TxOptions) (*sql.Tx, error) {
	return nil, errUntouched
}
