package fence_test

import (
	"errors"
	"fmt"
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

// PostgreSQL's functions have a hundred arguments at most.
func TestAnyNumberOfResourcesIsRaised(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	more := make([]string, 200)
	for i := range more {
		more[i] = fmt.Sprint(i)
	}
	ctx := bounded(t)
	wantErr(t, "Tx of a pool", fence.Tx(ctx, d.Pool(t), grant(7), "a", nothing, fence.Also(more...)), nil) // they travel with BEGIN
	wantErr(t, "Tx of a connection", fence.Tx(ctx, d.Conn(t), grant(7), "a", nothing, fence.Also(more...)), nil)
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pglock.fences WHERE last_token = 7`); n != 201 {
		t.Errorf("%d fences were raised, want 201", n)
	}
}

// What travels with BEGIN lets nobody in who names nothing.
func TestNoResourceLetsNobodyIn(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	conn := d.Conn(t)
	for _, none := range []string{`'{}'`, `NULL`} {
		if _, err := conn.Exec(t.Context(), `CALL pglock.fence_begin_raised('billing', 0, 7, `+none+`)`); sqlState(err) != "FL000" {
			t.Errorf("%s: %v, want FL000", none, err)
		}
	}
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
	if got := pgtest.Query[string](t, d, `SELECT string_agg(resource || last_token, ' ' ORDER BY resource) FROM pglock.fences WHERE resource <> ''`); got != "b9 c1" {
		t.Errorf("the fences are %s", got)
	}
	wantErr(t, "Tx", fence.Tx(ctx, pool, grant(10), "b", nothing, fence.Also("a")), nil)
	if got := pgtest.Query[string](t, d, `SELECT string_agg(resource || last_token, ' ' ORDER BY resource) FROM pglock.fences WHERE resource <> ''`); got != "a10 b10 c1" {
		t.Errorf("the fences are %s", got)
	}
}
