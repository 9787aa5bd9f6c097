package fence_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// Several resources are raised in the order of their names, whatever the order they are named in: who waits for the first has none
// of the others yet.
func TestSeveralResourcesAreRaisedInTheOrderOfTheirNames(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	first, pool := begin(t, d.Conn(t), pgx.ReadCommitted), d.Pool(t)
	ctx := bounded(t)
	wantErr(t, "Raise", fence.Raise(ctx, first, grant(7), "a"), nil)
	for _, ways := range []func() error{
		func() error { return fence.Tx(ctx, pool, grant(8), "c", nothing, fence.Also("b", "a")) },
		func() error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return fence.Raise(ctx, tx, grant(8), "b", fence.Also("a", "c")) })
		},
	} {
		waits := waiting(t, d, ways)
		wantErr(t, "Raise of what the other has not got to", fence.Raise(ctx, first, grant(7), "b", fence.Also("c")), nil)
		rollback(t, first)
		wantErr(t, "the one that waited", <-waits, nil)
		d.Exec(t, `DELETE FROM pglock.fences`)
		first = begin(t, d.Conn(t), pgx.ReadCommitted)
		wantErr(t, "Raise", fence.Raise(ctx, first, grant(7), "a"), nil)
	}
	rollback(t, first)
}

func TestTheRefusedOneOfSeveralResourcesIsNamed(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, `SELECT pglock.fence_raise('b', 'billing', 0, 9); SELECT pglock.fence_raise('c', 'other', 0, 1)`)
	pool := d.Pool(t)
	ctx := bounded(t)
	ran := func(pgx.Tx) error { t.Error("it ran"); return nil }

	var stale *fence.StaleError
	err := fence.Tx(ctx, pool, grant(7), "b", ran, fence.Also("a"))
	if !errors.As(err, &stale) || stale.Resource != "b" || stale.LastToken != 9 {
		t.Errorf("%v, want b to be stale", err)
	}
	var other *fence.OtherLockError
	err = fence.Tx(ctx, pool, grant(10), "c", ran, fence.Also("a", "b", "a"))
	if !errors.As(err, &other) || other.Resource != "c" || other.OtherLock != "other" {
		t.Errorf("%v, want c to be another lock's", err)
	}
	if got := pgtest.Query[string](t, d, `SELECT string_agg(resource || last_token, ' ' ORDER BY resource) FROM pglock.fences`); got != "b9 c1" {
		t.Errorf("the fences are %s", got)
	}
	wantErr(t, "Tx", fence.Tx(ctx, pool, grant(10), "b", nothing, fence.Also("a")), nil)
	if got := pgtest.Query[string](t, d, `SELECT string_agg(resource || last_token, ' ' ORDER BY resource) FROM pglock.fences`); got != "a10 b10 c1" {
		t.Errorf("the fences are %s", got)
	}
}
