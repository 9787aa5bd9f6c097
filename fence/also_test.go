package fence_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// Several resources are raised in the order of their names, whatever the order they are named in: transactions over the same
// ones wait for each other, and none is ended as a deadlock's victim.
func TestSeveralResourcesDoNotDeadlock(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	names := strings.Fields("a b c d e f g h")
	errs := make(chan error, 4)
	for i := range 4 {
		pool := d.Pool(t)
		go func() {
			var failed error
			for n := range 15 {
				order := append(append([]string(nil), names[(i*2+n)%8:]...), names[:(i*2+n)%8]...)
				err := fence.Tx(t.Context(), pool, grant(fence.Token(1+n*4+i)), order[0], nothing, fence.Also(order[1:]...))
				if !errors.Is(err, fence.ErrStale) {
					failed = errors.Join(failed, err)
				}
			}
			errs <- failed
		}()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
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
	if got := pgtest.Query[string](t, d, `SELECT string_agg(resource || last_token, ' ' ORDER BY resource) FROM pglock.fences`); got != "b9 c1" {
		t.Errorf("the fences are %s", got)
	}
	wantErr(t, "Tx", fence.Tx(ctx, pool, grant(10), "b", nothing, fence.Also("a")), nil)
	if got := pgtest.Query[string](t, d, `SELECT string_agg(resource || last_token, ' ' ORDER BY resource) FROM pglock.fences`); got != "a10 b10 c1" {
		t.Errorf("the fences are %s", got)
	}
}
