package fence

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// State tells the database under which grant the rest of a transaction writes to tables that are protected (see [Protect]).
// It compares nothing yet: each write does. [StatedTx] does it in a
// transaction of its own; [Tx], [Raise], [HeldTx] and [Hold] state their grant by themselves; what the last of them said counts.
//
// It is for this transaction only. A rollback to a savepoint takes back what was stated under it. The transaction of another
// caller on the same connection has stated nothing, whatever the session has set. In SQL:
//
//	SELECT pglock.fence_state('billing', 0, 42) -- the lock, its slot, the token
//
// which sets fencedlock.grant with SET LOCAL to a text that holds the transaction's id.
//
// The write's error goes through [Explain]: return g.Stale(fence.Explain(err)) also ends the lease where it is stale.
//
// It blocks for a round trip. After an error nothing was stated, and PostgreSQL wants the transaction rolled back.
//
// Errors: [ErrNeverGranted], [ErrNoToken], [ErrInvalid], [ErrNotMigrated], [ErrReadOnly] from a standby, or what PostgreSQL says, wrapped.
func State(ctx context.Context, tx pgx.Tx, g Grant, opts ...Option) error {
	return stateIn(ctx, tx, g, opts)
}

// StatedTx runs f in a transaction that has stated its grant, for tables that are protected. It blocks, ends and fails as [Tx] does,
// but for the fence: what f writes is refused where it is stale, and its error is explained and told the grant. Options: [Isolation],
// [First], [Schema].
func StatedTx(ctx context.Context, db Beginner, g Grant, f func(pgx.Tx) error, opts ...Option) error {
	return statedTx(ctx, ofPGX(db), g, f, opts)
}

// StatedTxSQL is [StatedTx] for database/sql.
func StatedTxSQL(ctx context.Context, db BeginnerSQL, g Grant, f func(*sql.Tx) error, opts ...Option) error {
	var run func(sqlTx) error
	if f != nil {
		run = func(tx sqlTx) error { return f(tx.tx) }
	}
	return statedTx(ctx, ofSQL(db), g, run, opts)
}

func statedTx[T transaction](ctx context.Context, start starter[T], g Grant, f func(T) error, opts []Option) error {
	cfg, err := checkState(g, opts, forStatedTx)
	if err != nil {
		return err
	}
	fence := question{
		name: "fence_begin_stated", args: []any{g.Lock, g.Slot, g.Token},
		ask: func(ctx context.Context, tx DB) error { return state(ctx, tx, g, cfg) },
	}
	return Explain(within(ctx, start, stateName(g), g, cfg, fence, f))
}

// StateSQL is [State] for database/sql.
func StateSQL(ctx context.Context, tx *sql.Tx, g Grant, opts ...Option) error {
	return stateIn(ctx, overSQL(tx), g, opts)
}

func stateIn(ctx context.Context, tx DB, g Grant, opts []Option) error {
	cfg, err := checkState(g, opts, use{})
	if err != nil {
		return err
	}
	if isNil(tx) {
		return fmt.Errorf("fence: %s: %w: nil transaction", stateName(g), ErrInvalid)
	}
	return state(ctx, tx, g, cfg)
}

// checkState refuses bad input before any SQL.
func checkState(g Grant, opts []Option, u use) (config, error) {
	if err := g.Validate(); err != nil {
		return config{}, err
	}
	cfg, err := resolve(g, opts)
	if err == nil {
		err = cfg.refuse(stateName(g), u)
	}
	return cfg, err
}

func state(ctx context.Context, tx DB, g Grant, cfg config) error {
	var done bool
	var s statement
	s.sql = "SELECT pg_catalog.pg_backend_pid(), true FROM " + cfg.quoted() + ".fence_state(" + s.text(g.Lock) + ", $2::int, $3::bigint)"
	if err := one(ctx, tx, s.sql, append(s.args, g.Slot, int64(g.Token)), &done); err != nil {
		return explain(Explain(fmt.Errorf("fence: %s: %w", stateName(g), err)), cfg)
	}
	return nil
}

func stateName(g Grant) string { return fmt.Sprintf("statement of lock %q", g.Lock) }
