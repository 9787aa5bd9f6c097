package fence

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Raise raises the fence of a resource in a transaction of the caller's, before it writes there: from then to the end of the
// transaction, or to the rollback of the savepoint it was raised under, transactions of later grants wait, and once it is
// committed those of earlier ones are refused. The same grant passes as often as it likes, side by side with itself. What
// was read or written before is not protected, so raise first. [Tx] does all that.
//
// A resource is any name of 1 to 1024 bytes. It belongs to the lock, and its slot, that raises it first. Several are raised by
// one call, with [Also]: in the order of their names, and in one round trip.
//
// It blocks while a transaction of another grant that has raised the fence is open, until ctx ends. While a later grant waits so, no
// further transaction of the earlier one is let in, and one that is open is refused when it asks again: ErrStale. That needs the lock
// to live in this database; where it does not, a former holder whose transactions always overlap keeps the next one waiting. [ErrStale], [ErrBehind],
// [ErrOtherLock] and [ErrNeverGranted] leave the transaction usable and the fence as it was, but no write may follow in it; of
// several resources those before the refused one are raised, so roll back.
//
// Errors: those four, [ErrNoToken], [ErrInvalid], [ErrNotMigrated], [ErrReadOnly], or what PostgreSQL says, wrapped: 40001 at repeatable
// read and serializable if another grant was there since the transaction began, 40P01 from transactions that raise several
// fences by several calls in different orders.
func Raise(ctx context.Context, tx pgx.Tx, g Grant, resource string, opts ...Option) error {
	return raiseIn(ctx, tx, g, resource, opts)
}

func raiseIn(ctx context.Context, tx DB, g Grant, resource string, opts []Option) error {
	cfg, names, err := checkResource(g, resource, opts, forCallersTx)
	if err != nil {
		return err
	}
	if isNil(tx) {
		return fmt.Errorf("fence: %s: %w: nil transaction", resource, ErrInvalid)
	}
	return raise(ctx, tx, g, names, cfg)
}

func raisedTx[T transaction](ctx context.Context, start starter[T], g Grant, resource string, f func(T) error, opts []Option) error {
	cfg, names, err := checkResource(g, resource, opts, forTx)
	if err != nil {
		return err
	}
	fence := question{
		name: "fence_begin_raised", args: []any{g.Lock, g.Slot, g.Token, names},
		ask: func(ctx context.Context, tx DB) error { return raise(ctx, tx, g, names, cfg) },
	}
	return within(ctx, start, strings.Join(names, ", "), g, cfg, fence, f)
}

// checkResource refuses bad input before any SQL.
func checkResource(g Grant, resource string, opts []Option, u use) (cfg config, names []string, err error) {
	if err := g.Validate(); err != nil {
		return config{}, nil, err
	}
	cfg, err = resolve(g, opts)
	if err != nil {
		return cfg, nil, err
	}
	names = append([]string{resource}, cfg.also...)
	for _, name := range names {
		if name == "" || len(name) > 1024 || !storable(name) {
			return cfg, nil, fmt.Errorf("fence: %w resource name %.80q: want 1 to 1024 bytes of UTF-8 without NUL", ErrInvalid, name)
		}
	}
	return cfg, names, cfg.refuse(resource, u)
}

// raiseCall is the beginning of the call that raises the fences with the names that the SQL stands for. Several are put in order by
// it.
func raiseCall(names []string, cfg config) string {
	if len(names) == 1 {
		return cfg.quoted() + ".fence_raise(" + names[0]
	}
	return cfg.quoted() + ".fence_raise_all(ARRAY[" + join(names) + "]"
}

func raise(ctx context.Context, tx DB, g Grant, names []string, cfg config) error {
	var (
		s        statement
		verdict  string
		last     Token
		resource []byte
		lock     []byte
		slot     int
	)
	grant := s.text(g.Lock) + ", " + s.arg(g.Slot) + "::int, " + s.arg(int64(g.Token)) + "::bigint)"
	args := make([]string, len(names))
	for i, name := range names {
		args[i] = s.text(name)
	}
	which := "''"
	if len(names) > 1 {
		which = "resource"
	}
	s.sql = fmt.Sprintf("SELECT pg_catalog.pg_backend_pid(), verdict, coalesce(last_token, 0), pg_catalog.convert_to(%s, 'UTF8'), "+
		"pg_catalog.convert_to(coalesce(last_name, ''), 'UTF8'), coalesce(last_slot, 0) FROM %s, %s", which, raiseCall(args, cfg), grant)
	if err := one(ctx, tx, s.sql, s.args, &verdict, &last, &resource, &lock, &slot); err != nil {
		return explain(fmt.Errorf("fence: %s: %w", strings.Join(names, ", "), err), cfg)
	}
	name := names[0]
	if len(names) > 1 {
		name = string(resource)
	}
	switch verdict {
	case "raised", "passed":
		return nil
	case "stale", "behind":
		return g.Stale(&StaleError{Resource: name, Lock: g.Lock, Token: g.Token, LastToken: last, Behind: verdict == "behind", cure: cfg.raiseFloor(last)})
	case "other_lock":
		return &OtherLockError{Resource: name, Lock: g.Lock, Slot: g.Slot, OtherLock: string(lock), OtherSlot: slot}
	case "never_granted":
		return fmt.Errorf("fence: %s: %w", name, neverGranted(g))
	default:
		return fmt.Errorf("fence: %s: this version of the library does not know the verdict %q", name, verdict)
	}
}
