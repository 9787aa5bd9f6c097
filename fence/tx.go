package fence

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Beginner is what [Tx] begins a transaction on: a *pgxpool.Pool, or a *pgx.Conn that is in none. For a transaction that exists
// already there is [Raise].
type Beginner interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// rollbackTime bounds the rollback of a transaction whose ctx has ended.
const rollbackTime = 5 * time.Second

// Tx runs f in a transaction that holds the fence of a resource: it raises the fence first (see [Raise]), then runs f with
// the transaction, and commits. A later grant's Tx waits until this one has ended; an earlier grant's is refused before its
// f runs.
//
// A process that is suspended in f keeps the next holder waiting for as long as its session lives. Let the server end such a transaction:
// ALTER ROLE my_service SET idle_in_transaction_session_timeout = '10s', for which f may then not pause. [HeldTx] brings such a limit along.
//
// It blocks as Raise does, and while f runs. f writes through the transaction that it is given, and neither commits nor
// ends it: what it writes after that is under no fence, and an error says so, unless it has begun another one. After any other error
// nothing is written, except with [ErrCommitUnknown], where nobody knows; if f returns an error,
// panics or calls runtime.Goexit, the transaction is rolled back. ctx bounds all of it; when it ends, the rollback is still
// sent.
//
// On a *pgxpool.Pool the fence travels with BEGIN and costs no round trip of its own; a transaction that is refused costs its
// connection, which the pool replaces. With [First] what is written first travels with them, too.
//
// Errors: f's own, as it is; those of Raise, for which f did not run; ErrCommitUnknown; or what PostgreSQL says, wrapped.
// Any number of goroutines may call it at a time, with one grant too.
func Tx(ctx context.Context, db Beginner, g Grant, resource string, f func(pgx.Tx) error, opts ...Option) error {
	return raisedTx(ctx, ofPGX(db), g, resource, f, opts)
}

// A transaction is what those of pgx and of database/sql have in common here.
type transaction interface {
	DB
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// A starter begins transactions. fenced reports that the fence was sent with BEGIN, and let the transaction pass; so was then the
// batch that is to be first, if there is one, whose answers are to be read next. Without send there can be no batch.
type starter[T transaction] struct {
	db    any
	begin func(ctx context.Context, cfg config, fence question) (tx T, first pgx.BatchResults, fenced bool, err error)
	send  func(ctx context.Context, tx T, b *pgx.Batch) pgx.BatchResults
}

func ofPGX(db Beginner) starter[pgx.Tx] {
	begin := func(ctx context.Context, cfg config, fence question) (tx pgx.Tx, first pgx.BatchResults, fenced bool, err error) {
		if conn := connOf(db); conn != nil && !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' { // which our commit would end for its owner
			return nil, nil, false, fmt.Errorf("%w: the connection is in a transaction: use Raise, Hold or State in that one", ErrInvalid)
		}
		pool, pooled := db.(*pgxpool.Pool)
		if cfg.first != nil {
			tx, first, err = beginWith(ctx, db, cfg, fence)
		} else if pooled {
			tx, err = pool.BeginTx(ctx, pgx.TxOptions{BeginQuery: fence.withBegin(cfg)})
		}
		if fenced = tx != nil; fenced || err != nil && codeOf(err) != refused {
			return tx, first, fenced, err
		}
		// What was refused is asked for once more: an answer says why.
		tx, err = db.BeginTx(ctx, pgx.TxOptions{IsoLevel: cfg.isolation})
		return tx, nil, false, err
	}
	return starter[pgx.Tx]{db, begin, func(ctx context.Context, tx pgx.Tx, b *pgx.Batch) pgx.BatchResults { return tx.SendBatch(ctx, b) }}
}

// connOf is the one connection behind a value; nil if there is none to be seen.
func connOf(db any) *pgx.Conn {
	switch x := db.(type) {
	case *pgx.Conn:
		return x
	case interface{ Conn() *pgx.Conn }: // a transaction, or a pool's connection
		return x.Conn()
	}
	return nil
}

// refused is the SQLSTATE of a fence that was sent with BEGIN, and is closed.
const refused = "FL000"

// A question is a fence that a transaction begins with: a procedure that is called, or asked in it.
type question struct {
	name string
	args []any // string, int, int64, Token or []string
	ask  func(ctx context.Context, tx DB) error
}

// within runs f in a transaction that is let in by its fence, after the batch that is first, and commits it if neither has an error.
func within[T transaction](ctx context.Context, start starter[T], what string, g Grant, cfg config, fence question, f func(T) error) error {
	switch {
	case isNil(start.db):
		return fmt.Errorf("fence: %s: %w: nil database", what, ErrInvalid)
	case cfg.first != nil && start.send == nil:
		return fmt.Errorf("fence: %s: %w: First is for pgx", what, ErrInvalid)
	case (cfg.first == nil || cfg.first.Len() == 0) && f == nil:
		return fmt.Errorf("fence: %s: %w: nothing to run", what, ErrInvalid)
	}
	cfg.whole = f == nil && !hasFunction(cfg.first)
	tx, first, fenced, err := start.begin(ctx, cfg, fence)
	if err != nil {
		return explain(fmt.Errorf("fence: %s: begin: %w", what, err), cfg)
	}
	defer rollback(ctx, tx) // also where f panics or exits; after the commit it does nothing
	if !fenced {
		if err := fence.ask(ctx, tx); err != nil {
			return err
		}
	}
	if first != nil && cfg.whole { // COMMIT was sent as well
		err := first.Close()
		if err != nil && !uncommitted(err) {
			return fmt.Errorf("fence: %s: %w: %w", what, ErrCommitUnknown, withCause(ctx, err))
		}
		return g.explained(err)
	}
	if cfg.first != nil {
		if first == nil {
			first = start.send(ctx, tx, unsent(cfg.first))
		}
		if err := first.Close(); err != nil { // which calls the batch's functions
			return g.explained(err)
		}
		if start.over(ctx, tx) {
			return fmt.Errorf("fence: %s: the batch has ended its transaction, by SQL of its own: look at what of it is there", what)
		}
	}
	if f != nil {
		if err := f(tx); err != nil {
			return g.explained(err)
		}
		if start.over(ctx, tx) {
			return fmt.Errorf("fence: %s: f has ended the transaction that it was given: look at what of its writes is there", what)
		}
	}
	return commit(ctx, tx, what)
}

// over tells that a transaction has been ended, where that can be seen. Of one that another has followed it cannot, nor over database/sql.
func (s starter[T]) over(ctx context.Context, tx T) bool {
	if s.send == nil {
		return false
	}
	if errors.Is(s.send(ctx, tx, &pgx.Batch{}).Close(), pgx.ErrTxClosed) { // which is not sent. The connection may be another's by now
		return true
	}
	conn := connOf(tx)
	return conn != nil && !conn.IsClosed() && conn.PgConn().TxStatus() == 'I'
}

// isNil also holds for an interface with a nil pointer in it.
func isNil(db any) bool {
	v := reflect.ValueOf(db)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

func rollback(ctx context.Context, tx transaction) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTime)
	defer cancel()
	_ = tx.Rollback(ctx) // what a broken connection began, the server rolls back
}

func commit(ctx context.Context, tx transaction, what string) error {
	err := tx.Commit(ctx)
	if err == nil {
		return nil
	}
	err = withCause(ctx, err)
	if uncommitted(err) {
		return fmt.Errorf("fence: %s: commit: %w", what, err)
	}
	return fmt.Errorf("fence: %s: commit: %w: %w", what, ErrCommitUnknown, err)
}

// withCause adds to the error of a commit why its ctx has ended: that of a lease that was lost says so.
func withCause(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(err, context.Cause(ctx)) {
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return err
}

// uncommitted tells an error that says that nothing was committed.
func uncommitted(err error) bool {
	var (
		pg     *pgconn.PgError
		before pgx.ErrPreprocessingBatch
	)
	return errors.As(err, &pg) && pg.SeverityUnlocalized == "ERROR" || // a refusal; a FATAL may have come after the commit
		errors.Is(err, pgx.ErrTxCommitRollback) || errors.Is(err, pgx.ErrTxClosed) ||
		errors.Is(err, errNotSent) || errors.As(err, &before) || pgconn.SafeToRetry(err) // it was never sent
}
