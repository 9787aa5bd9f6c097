package advisory

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"
)

// txGrace is what a statement in a caller's transaction is given when ctx has ended: longer, since to cut it off would end
// the transaction.
const txGrace = 5 * time.Second

// A Tx takes locks in a transaction of the caller's. The locks are of the transaction: they end with it, whether it commits
// or not, and with the rollback to a savepoint that is older than they are. There is nothing to release, and the same lock may be
// taken again. Like the transaction, it is for one goroutine at a time. It works behind transaction poolers.
//
// The lock comes before what it protects is read. At read committed, each statement after it sees what the last holder has
// committed. At repeatable read and serializable the transaction sees what was there at its first statement, which is this one
// or an earlier one: it may be granted the lock and still not see the last holder's work. Take a session lock
// before such a transaction.
type Tx struct {
	query queryer // nil: there is no transaction
}

// InTx is for a transaction of pgx.
func InTx(tx pgx.Tx) Tx {
	if isNil(tx) {
		return Tx{}
	}
	return Tx{func(ctx context.Context, sql string, args ...any) row {
		// Nothing is prepared: a transaction pooler may be in between.
		return tx.QueryRow(ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...)
	}}
}

// isNil also holds for an interface with a nil pointer in it.
func isNil(db any) bool {
	v := reflect.ValueOf(db)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// InSQLTx is for a transaction of database/sql, with any driver that takes parameters as $1 (pgx's own, lib/pq).
func InSQLTx(tx *sql.Tx) Tx {
	if tx == nil {
		return Tx{}
	}
	return Tx{func(ctx context.Context, sql string, args ...any) row { return tx.QueryRowContext(ctx, sql, args...) }}
}

// TryAcquire asks for the lock once. Nil: the transaction holds it. It blocks for one round trip, for five when another
// holds the lock. After a *HeldError, or ErrStandby, the transaction goes on as before, with all its settings; so it does when ctx
// ends, since a statement that is under way then is still waited for, for up to 5 s. Other errors: ErrInvalidKey,
// ErrInvalidOption and the cause of a ctx that has ended before, for which nothing is sent; or what the driver says, after
// which PostgreSQL refuses the transaction's further statements.
func (t Tx) TryAcquire(ctx context.Context, key Key, opts ...Option) error {
	return t.acquire(ctx, key, opts, false)
}

// Acquire waits for the lock until ctx ends, which bounds nothing else: give it a timeout of its own. It asks again at jittered
// intervals of 25 ms that grow to 250 ms. (A blocking pg_advisory_xact_lock would need a lock_timeout, whose error ends the
// transaction.) When ctx ends, the error matches its cause and ErrHeld, and the transaction goes on as before. Otherwise it
// fails as TryAcquire does.
func (t Tx) Acquire(ctx context.Context, key Key, opts ...Option) error {
	return t.acquire(ctx, key, opts, true)
}

func (t Tx) acquire(ctx context.Context, key Key, opts []Option, wait bool) error {
	r, err := newRequest(key, opts)
	if err != nil {
		return err
	}
	if t.query == nil {
		return fmt.Errorf("%w: %s: no transaction", ErrInvalidOption, key.describe())
	}
	if ctx.Err() != nil {
		return explain(key, context.Cause(ctx))
	}
	sctx, cancel := grace(ctx, txGrace)
	defer cancel()
	for tries := 0; ; tries++ {
		var got *bool
		if err := t.query(sctx, r.try("pg_try_advisory_xact_lock"), r.args()...).Scan(&got); err != nil {
			return explain(key, err)
		}
		switch {
		case got == nil:
			return explain(key, ErrStandby)
		case *got:
			return nil
		case wait && pause(ctx, tries):
			continue
		}
		held, err := t.heldBy(sctx, key)
		switch {
		case err != nil:
			return explain(key, err)
		case wait:
			return waited(ctx, key, held)
		}
		return held
	}
}

// heldBy looks for who is in the way, under a savepoint that is rolled back: whatever keeps it from looking, a missing privilege
// or a short statement_timeout, is not to cost the caller its transaction, and the locks on system views that looking takes are
// not to stay until its end. The error is that of a transaction that is lost all the same.
func (t Tx) heldBy(ctx context.Context, key Key) (*HeldError, error) {
	if err := t.exec(ctx, "SAVEPOINT pglock_advisory"); err != nil {
		return nil, err
	}
	held, _ := heldBy(ctx, t.query, key) // an answer is lacking if it fails, nothing more
	if err := t.exec(ctx, "ROLLBACK TO SAVEPOINT pglock_advisory"); err != nil {
		return nil, err
	}
	return held, t.exec(ctx, "RELEASE SAVEPOINT pglock_advisory")
}

// exec runs a statement that answers nothing.
func (t Tx) exec(ctx context.Context, statement string) error {
	err := t.query(ctx, statement).Scan()
	if errors.Is(err, pgx.ErrNoRows) || errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	return err
}
