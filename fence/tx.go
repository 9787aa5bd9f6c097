package fence

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Beginner is what [Tx] begins a transaction on: a *pgx.Conn or a *pgxpool.Pool. For a transaction that exists already
// there is [Raise].
type Beginner interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// rollbackTime bounds the rollback of a transaction whose ctx has ended.
const rollbackTime = 5 * time.Second

// Tx runs f in a transaction that holds the fence of a resource: it raises the fence first (see [Raise]), then runs f with
// the transaction, and commits. A later grant's Tx waits until this one has ended; an earlier grant's is refused before its
// f runs.
//
// It blocks as Raise does, and while f runs. f writes through the transaction that it is given, and neither commits nor
// ends it. After an error nothing is written, except with [ErrCommitUnknown], where nobody knows; if f returns an error,
// panics or calls runtime.Goexit, the transaction is rolled back. ctx bounds all of it; when it ends, the rollback is still
// sent.
//
// Errors: f's own, as it is; those of Raise, for which f did not run; ErrCommitUnknown; or what PostgreSQL says, wrapped.
// Any number of goroutines may call it at a time, with one grant too.
func Tx(ctx context.Context, db Beginner, g Grant, resource string, f func(pgx.Tx) error, opts ...Option) error {
	cfg, err := checkResource(g, resource, opts)
	if err != nil {
		return err
	}
	if err := cfg.refuse(resource, forTx); err != nil {
		return err
	}
	if f == nil {
		return fmt.Errorf("fence: %s: %w: nothing to run", resource, ErrInvalid)
	}
	return within(ctx, db, resource, cfg, func(tx pgx.Tx) error {
		if err := raise(ctx, tx, g, resource, cfg); err != nil {
			return err
		}
		return f(tx)
	})
}

// within runs f in a transaction, and commits it if f has no error.
func within(ctx context.Context, db Beginner, what string, cfg config, f func(pgx.Tx) error) error {
	if isNil(db) {
		return fmt.Errorf("fence: %s: %w: nil database", what, ErrInvalid)
	}
	tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: cfg.isolation})
	if err != nil {
		return fmt.Errorf("fence: %s: begin: %w", what, err)
	}
	defer rollback(ctx, tx) // also where f panics or exits; after the commit it does nothing
	if err := f(tx); err != nil {
		return err
	}
	return commit(ctx, tx, what)
}

// isNil also holds for an interface with a nil pointer in it.
func isNil(db any) bool {
	v := reflect.ValueOf(db)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTime)
	defer cancel()
	_ = tx.Rollback(ctx) // what a broken connection began, the server rolls back
}

func commit(ctx context.Context, tx pgx.Tx, resource string) error {
	err := tx.Commit(ctx)
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &pg) && pg.SeverityUnlocalized == "ERROR", // a refusal; a FATAL may have come after the commit
		errors.Is(err, pgx.ErrTxCommitRollback), errors.Is(err, pgx.ErrTxClosed),
		pgconn.SafeToRetry(err): // it was never sent
		return fmt.Errorf("fence: %s: commit: %w", resource, err)
	default:
		return fmt.Errorf("fence: %s: commit: %w: %w", resource, ErrCommitUnknown, err)
	}
}
