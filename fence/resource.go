package fence

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Raise raises the fence of a resource in a transaction of the caller's, before it writes there: from then to the end of the
// transaction, or to the rollback of the savepoint it was raised under, transactions of later grants wait, and once it is
// committed those of earlier ones are refused. The same grant passes as often as it likes, side by side with itself. What
// was read or written before is not protected, so raise first. [Tx] does all that.
//
// A resource is any name of 1 to 1024 bytes. It belongs to the lock, and its slot, that raises it first.
//
// It blocks while a transaction of another grant that has raised the fence is open, until ctx ends. When it returns an error
// the fence is as before. [ErrStale], [ErrBehind], [ErrOtherLock] and [ErrNeverGranted] leave the transaction usable, but no
// write may follow in it.
//
// Errors: those four, [ErrNoToken], [ErrInvalid], [ErrNotMigrated], or what PostgreSQL says, wrapped: 40001 at repeatable
// read and serializable if another grant was there since the transaction began, 40P01 from transactions that raise several
// fences in different orders. Raise several in the order of their names.
func Raise(ctx context.Context, tx pgx.Tx, g Grant, resource string, opts ...Option) error {
	cfg, err := checkResource(g, resource, opts)
	if err != nil {
		return err
	}
	if err := cfg.refuse(resource, forCallersTx); err != nil {
		return err
	}
	if isNil(tx) {
		return fmt.Errorf("fence: %s: %w: nil transaction", resource, ErrInvalid)
	}
	return raise(ctx, tx, g, resource, cfg)
}

// checkResource refuses bad input before any SQL.
func checkResource(g Grant, resource string, opts []Option) (config, error) {
	if err := g.Validate(); err != nil {
		return config{}, err
	}
	cfg, err := resolve(g, opts)
	switch {
	case err != nil:
		return cfg, err
	case resource == "" || len(resource) > 1024 || !storable(resource):
		return cfg, fmt.Errorf("fence: %w resource name %.80q: want 1 to 1024 bytes of UTF-8 without NUL", ErrInvalid, resource)
	}
	return cfg, nil
}

func raise(ctx context.Context, tx pgx.Tx, g Grant, resource string, cfg config) error {
	var (
		verdict string
		last    Token
		lock    string
		slot    int
	)
	err := tx.QueryRow(ctx, `SELECT verdict, coalesce(last_token, 0), coalesce(last_name, ''), coalesce(last_slot, 0) FROM `+
		cfg.quoted()+`.fence_raise($1::text, $2::text, $3::int, $4::bigint)`,
		pgx.QueryExecModeExec, resource, g.Lock, g.Slot, int64(g.Token)).Scan(&verdict, &last, &lock, &slot)
	if err != nil {
		return explain(fmt.Errorf("fence: %s: %w", resource, err), cfg)
	}
	switch verdict {
	case "raised", "passed":
		return nil
	case "stale", "behind":
		return g.Stale(&StaleError{Resource: resource, Lock: g.Lock, Token: g.Token, LastToken: last, Behind: verdict == "behind"})
	case "other_lock":
		return &OtherLockError{Resource: resource, Lock: g.Lock, Slot: g.Slot, OtherLock: lock, OtherSlot: slot}
	case "never_granted":
		return fmt.Errorf("fence: %s: %w", resource, neverGranted(g))
	default:
		return fmt.Errorf("fence: %s: this version of the library does not know the verdict %q", resource, verdict)
	}
}
