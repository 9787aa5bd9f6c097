package fence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedlock/fencedlock/internal/holding"
)

const (
	// heldIdle is how long the server lets a transaction that holds its lock wait for its client.
	heldIdle = 5 * time.Second

	defaultLimit = time.Minute
	maxLimit     = 24 * 24 * time.Hour // PostgreSQL counts 31 bits of milliseconds
)

// HeldTx runs f in a transaction that commits only while nobody else has been granted the lock: see [Hold], which it calls
// before f. What f writes needs no token and no fence of its own. It is for data beside the locks, in the same database. With [First]
// the check travels with the first writes.
//
// It blocks as Hold does, and while f runs; ctx and the limit ([Limit], a minute) bound it, and 5 s are the longest that f may take
// between two statements. f writes through the transaction that it is given, uses the ctx that it is given, and neither commits nor
// ends the transaction, as in Tx. Acquiring the same lock with that ctx is refused, since it could only wait for itself; context.Cause of it
// tells the limit's end from that of the caller's. After an error nothing is written, except with [ErrCommitUnknown]; if f returns
// an error, panics or calls runtime.Goexit, the transaction is rolled back.
//
// On a *pgxpool.Pool the check travels with BEGIN, as the fence of [Tx] does, and a refusal costs the connection.
//
// Errors: f's own, as it is (PostgreSQL's 25P03, those 5 s, is wrapped); those of Hold, for which f did not run; ErrCommitUnknown;
// or what PostgreSQL says, wrapped. Any number of goroutines may call it at a time, with one grant too.
func HeldTx(ctx context.Context, db Beginner, g Grant, f func(context.Context, pgx.Tx) error, opts ...Option) error {
	return heldTx(ctx, ofPGX(db), g, f, opts)
}

func heldTx[T transaction](ctx context.Context, start starter[T], g Grant, f func(context.Context, T) error, opts []Option) error {
	cfg, err := checkHeld(g, opts, forHeldTx)
	if err != nil {
		return err
	}
	over := fmt.Errorf("fence: %s: its limit of %v is over: %w", heldName(g), cfg.limit, context.DeadlineExceeded)
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.limit, over)
	defer cancel()
	idle, total := limits(cfg)
	fence := question{
		name: "fence_begin_held", args: []any{g.Lock, g.Slot, g.Token, idle, total},
		ask: func(ctx context.Context, tx DB) error { return hold(ctx, tx, g, cfg) },
	}
	var run func(T) error
	if f != nil {
		run = func(tx T) error { return f(holding.With(ctx, cfg.schema, g.Lock, int64(g.Token)), tx) }
	}
	err = within(ctx, start, heldName(g), g, cfg, fence, run)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "25P03" { // says nothing of the lock
		err = fmt.Errorf("fence: %s: %w; the server lets it wait for its client for %v at most, so do what is slow before it",
			heldName(g), err, min(heldIdle, cfg.limit))
	}
	return err
}

// Hold ties a transaction of the caller's to its grant, before it writes: until the transaction ends, nobody else is granted
// the lock, so all that it writes comes before all that a later holder writes. Whoever asks for the lock meanwhile is told
// that it is held. Renewals and the release go on. It refuses a lease that has expired, so transactions that overlap cannot
// keep a lock for ever. [HeldTx] does all that.
//
// Under a savepoint it is worth nothing once that is rolled back to: call it in the transaction itself.
//
// A writer that is paused or cut off keeps others away until the server ends its transaction: when it was idle for 5 s, when a
// statement took longer than the limit ([Limit], a minute), and from PostgreSQL 17 on when the limit is over. A stricter
// setting of the session stays; all of them end with the transaction. PostgreSQL looks at them between the messages of a client,
// not where it waits for the rest of what was begun: a writer that stops in the middle of a COPY FROM STDIN, or before PostgreSQL 17 of
// a pipeline (a [pgx.Batch]), keeps others away until its connection breaks or somebody ends its session (pg_terminate_backend). So
// copy into a table that nobody else reads, and write from there under the lock. A transaction that was prepared (PREPARE
// TRANSACTION) has no limit: it keeps others away until somebody commits or rolls it back.
//
// It blocks for a round trip, and while a later grant is being made, until ctx ends. After an error the transaction must be
// rolled back.
//
// Errors: [ErrStale] if a later grant exists, [ErrExpired], [ErrElsewhere], [ErrNeverGranted], [ErrNoToken], [ErrInvalid],
// [ErrNotMigrated], [ErrReadOnly], or what PostgreSQL says, wrapped: 40001 at repeatable read and serializable if the transaction began too
// early to tell, and [ErrElsewhere] if nobody had ever been granted the lock then.
func Hold(ctx context.Context, tx pgx.Tx, g Grant, opts ...Option) error {
	return holdIn(ctx, tx, g, opts)
}

func holdIn(ctx context.Context, tx DB, g Grant, opts []Option) error {
	cfg, err := checkHeld(g, opts, forHeldCheck)
	if err != nil {
		return err
	}
	if isNil(tx) {
		return fmt.Errorf("fence: lock %q: %w: nil transaction", g.Lock, ErrInvalid)
	}
	return hold(ctx, tx, g, cfg)
}

// checkHeld refuses bad input before any SQL.
func checkHeld(g Grant, opts []Option, u use) (config, error) {
	if err := g.Validate(); err != nil {
		return config{}, err
	}
	cfg, err := resolve(g, opts)
	if err == nil {
		err = cfg.refuse(heldName(g), u)
	}
	return cfg, err
}

// limits are what the server is told, in milliseconds.
func limits(cfg config) (idle, total int64) {
	return min(heldIdle, cfg.limit).Milliseconds(), cfg.limit.Milliseconds()
}

func hold(ctx context.Context, tx DB, g Grant, cfg config) error {
	var (
		verdict string
		last    Token
	)
	idle, total := limits(cfg)
	var s statement
	s.sql = "SELECT pg_catalog.pg_backend_pid(), verdict, coalesce(last_token, 0) FROM " + cfg.quoted() +
		".fence_check(" + s.text(g.Lock) + ", $2::int, $3::bigint, $4::int, $5::int)"
	if err := one(ctx, tx, s.sql, append(s.args, g.Slot, int64(g.Token), idle, total), &verdict, &last); err != nil {
		return explain(fmt.Errorf("fence: %s: %w", heldName(g), err), cfg)
	}
	switch verdict {
	case "held":
		return nil
	case "stale":
		return g.Stale(&StaleError{Resource: heldName(g), Lock: g.Lock, Token: g.Token, LastToken: last})
	case "expired":
		return fmt.Errorf("fence: %s: %w: token %d; acquire the lock again", heldName(g), ErrExpired, g.Token)
	case "elsewhere":
		return fmt.Errorf("fence: %s: %w: use Tx with a resource where the locks live in another one", heldName(g), ErrElsewhere)
	case "never_granted":
		return fmt.Errorf("fence: %s: %w", heldName(g), neverGranted(g))
	default:
		return fmt.Errorf("fence: %s: this version of the library does not know the verdict %q", heldName(g), verdict)
	}
}

func heldName(g Grant) string { return fmt.Sprintf("transaction under lock %q", g.Lock) }
