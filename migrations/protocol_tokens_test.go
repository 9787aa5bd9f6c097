package migrations_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

const maxToken = 1<<53 - 1

func (c *caller) lastToken() int64 {
	c.t.Helper()
	return one[int64](c, `SELECT last_value FROM pglock.fencing_token`)
}

// A sequence that fell behind, by hand or in a restore, is moved and not obeyed.
func TestLaggingSequenceIsNotObeyed(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	g := c.take("a")
	c.release(g)
	db.Exec(t, `SELECT setval('pglock.fencing_token', 5)`)
	next := c.take("a")
	if next.token <= g.token {
		t.Errorf("token %d after %d", next.token, g.token)
	}
	want(t, "renewal with the token that was told", c.renew(next), "renewed")
	if third := c.take("b"); third.token <= next.token {
		t.Errorf("token %d after %d: the sequence was not moved", third.token, next.token)
	}
}

// However many find the sequence behind at the same time, no token is drawn twice, and none falls.
func TestConcurrentMoversDrawNoTokenTwice(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	const rounds = 8
	callers := pgtest.Rounds(8, 16)
	base := newCaller(t, db).lastToken()
	db.Exec(t, `INSERT INTO pglock.leases (name, token) SELECT 'job ' || i, $1 + i * 3000000::bigint FROM generate_series(0, 15) i`, base)
	db.Exec(t, `SELECT setval('pglock.fencing_token', 5)`)
	var all []*caller
	for range callers {
		all = append(all, newCaller(t, db))
	}
	var (
		start = make(chan struct{})
		wg    sync.WaitGroup
		mu    sync.Mutex
		seen  = map[int64]bool{}
	)
	for i, c := range all {
		wg.Go(func() {
			<-start
			last := base + int64(i)*3_000_000
			for range rounds {
				g := c.take(fmt.Sprint("job ", i))
				c.release(g)
				if i%4 == 0 {
					c.exec(`SELECT pglock.raise_token_floor($1)`, last)
				}
				mu.Lock()
				if g.token <= last || seen[g.token] {
					t.Errorf("token %d after %d, drawn before: %t", g.token, last, seen[g.token])
				}
				seen[g.token], last = true, g.token
				mu.Unlock()
			}
		})
	}
	close(start)
	wg.Wait()
	want(t, "tokens", len(seen), callers*rounds)
}

// A mover that is held up before it moves the sequence does not move it back.
func TestStalledMoverNeverMovesBack(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	slow, quick, third := newCaller(t, db), newCaller(t, db), newCaller(t, db)
	hookInto(t, db, beforeSetval)
	base := third.lastToken()
	resume := stalled(t, db, slow, func() int64 { return one[int64](slow, `SELECT pglock.raise_token_floor($1)`, base) })
	moved := make(chan int64, 1)
	go func() { moved <- one[int64](quick, `SELECT pglock.raise_token_floor($1)`, base+1<<40) }()
	db.WaitFor(t, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND query LIKE '%raise_token_floor%'
		AND (wait_event_type = 'Lock' OR state = 'idle'))`, quick.conn.PgConn().PID())
	drawn := third.take("a").token // those who only draw are not held up
	low := resume()
	high := <-moved
	after := third.take("b").token
	if drawn <= base || low <= drawn || high <= low || high <= base+1<<40 || after <= high {
		t.Errorf("tokens above %d: drawn %d, moved to %d and %d, then drawn %d", base, drawn, low, high, after)
	}
}

// The floor is for an owner who knows of a greater token. It cannot use the tokens up.
func TestTokenFloorIsBounded(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	before := c.lastToken()
	for _, bad := range []string{"NULL", "-1", "6755399441055745", "9007199254740991", "9223372036854775807"} {
		want(t, "floor "+bad, sqlState(c.fails(`SELECT pglock.raise_token_floor(`+bad+`)`)), "22003")
	}
	want(t, "the sequence", c.lastToken(), before)
	if got := one[int64](c, `SELECT pglock.raise_token_floor(0)`); got <= before {
		t.Errorf("a low floor answers %d, want above %d", got, before)
	}
	const highest = 6755399441055744
	one[int64](c, `SELECT pglock.raise_token_floor($1)`, int64(highest))
	if g := c.take("a"); g.token <= highest || g.token > maxToken {
		t.Errorf("token %d, want between %d and 2^53", g.token, int64(highest))
	}
}

// A caller that has seen a later token than this database has drawn is right: the database has lost its memory.
func TestSeenTokenRaisesTheFloorAndHolds(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	seen := c.lastToken() + 3_600_000_000 // an hour
	got := c.acquire(ask{name: "a", seen: seen})
	if got.status != "held_back" || got.remaining <= 0 {
		t.Errorf("%+v, want held_back", got)
	}
	want(t, "bumps", one[int](c, `SELECT bumps FROM pglock.guard`), 1)
	want(t, "the next one", c.try("a"), "held_back")
	c.endHold()
	if got := c.acquire(ask{name: "a", seen: seen}); got.status != "granted" || got.token <= seen {
		t.Errorf("%+v, want a token above %d", got, seen)
	}
}

// What no database can have drawn is not followed: it would use the tokens up.
func TestTokenBeyondBeliefMovesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	state := func() string {
		return one[string](c, `SELECT concat(g, s.last_value) FROM pglock.guard g, pglock.fencing_token s`)
	}
	before := state()
	for _, seen := range []int64{c.lastToken() + 2*86_400_000_000, maxToken, 1<<63 - 1} {
		want(t, fmt.Sprint("acquire with ", seen), c.acquire(ask{name: "a", seen: seen}).status, "stale")
		want(t, "hold_us", one[int64](c, `SELECT hold_us FROM pglock.check_in($1)`, seen), 0)
	}
	want(t, "guard and sequence", state(), before)
	for _, seen := range []int64{0, -1, -1 << 63} {
		c.release(c.takeWith(ask{name: "a", seen: seen}))
	}
}
