package migrations_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// Another's first use of a name, not yet committed, stalls nobody: neither on that name nor on others.
func TestUncommittedPlantStallsNobody(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	slow, other := newCaller(t, db), newCaller(t, db)
	slow.exec(`BEGIN`)
	slow.take("new")
	got := one[string](other, `SELECT string_agg(status, ' ' ORDER BY ord) FROM pglock.acquire(ARRAY['before', 'new', 'after'],
		ARRAY[$1, $2, $3]::uuid[], '', ARRAY[1000000, 1000000, 1000000])`, newID(), newID(), newID())
	want(t, "answers", got, "granted retry granted")
	slow.exec(`COMMIT`)
	want(t, "after the commit", other.try("new"), "held")

	slow.exec(`BEGIN`)
	slow.take("newer")
	slow.exec(`ROLLBACK`)
	other.take("newer")
}

// A first use that is held up between its try-lock and its row stalls nobody either.
func TestStalledPlantStallsNobody(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	slow, other := newCaller(t, db), newCaller(t, db)
	hookInto(t, db, beforeInsert)
	resume := stalled(t, db, slow, func() string { return slow.try("new") })
	want(t, "the name", other.try("new"), "retry")
	other.take("another")
	want(t, "the stalled one", resume(), "granted")
}

// Two that plant a name each, and want the other's: each sees the other's uncommitted work, and neither waits.
func TestPlantsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	a, b := newCaller(t, db), newCaller(t, db)
	z := a.take("z")
	a.exec(`BEGIN`)
	b.exec(`BEGIN`)
	want(t, "renewal of z", a.renew(z), "renewed")
	b.take("y")
	want(t, "b wants z, which a has renewed", b.try("z"), "held")
	want(t, "a wants y, which b has planted", a.try("y"), "retry")
	a.take("x")
	want(t, "b wants x, which a has planted", b.try("x"), "retry")
	a.exec(`COMMIT`)
	b.exec(`COMMIT`)
}

// Many processes use many names for the first time, all at once: each name has one winner, and nobody an error.
func TestFirstUseHasOneWinner(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	const names = 20
	callers := pgtest.Rounds(12, 32)
	var all []*caller
	for range callers {
		all = append(all, newCaller(t, db))
	}
	var (
		start = make(chan struct{})
		wg    sync.WaitGroup
		mu    sync.Mutex
		won   = map[string]int{}
		toks  = map[int64]bool{}
	)
	for _, c := range all {
		wg.Go(func() {
			<-start
			for _, i := range rand.Perm(names) {
				a := ask{name: fmt.Sprint("job ", i), id: newID()}
				got := c.acquire(a)
				for got.status == "retry" {
					got = c.acquire(a)
				}
				mu.Lock()
				switch {
				case got.status == "granted":
					won[a.name]++
					toks[got.token] = true
				case got.status != "held":
					t.Errorf("%s: %+v", a.name, got)
				}
				mu.Unlock()
			}
		})
	}
	close(start)
	wg.Wait()
	for i := range names {
		want(t, fmt.Sprint("winners of job ", i), won[fmt.Sprint("job ", i)], 1)
	}
	want(t, "tokens", len(toks), names)
}
