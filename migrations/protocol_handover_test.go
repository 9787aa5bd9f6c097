package migrations_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// A mutex that is handed over alone takes a short way. Nobody must be able to tell it from a release and a grant, one after the
// other: each is made both ways, of two names with the same past.
func TestAHandOverIsAReleaseAndAGrant(t *testing.T) {
	t.Parallel()
	meta := `{"by": "a hand-over"}`
	taken := func(c *caller, name string) grant { return c.take(name) }
	cases := []struct {
		name   string
		past   func(c *caller, name string) grant // what is ended
		again  bool                               // asked for once more
		unheld bool
		ask    ask
		want   string
	}{
		{name: "held", past: taken, want: "released granted"},
		{name: "with all that it may have", past: taken, ask: ask{label: "me", ttl: 20 * time.Second, hold: time.Minute, delay: time.Hour, meta: &meta}, want: "released granted"},
		{name: "the holder's delay is gone", past: func(c *caller, name string) grant {
			return c.takeWith(ask{name: name, delay: time.Hour, meta: &meta})
		}, want: "released granted"},
		{name: "lapsed", past: func(c *caller, name string) grant { g := c.take(name); c.age(name); return g }, want: "released granted"},
		{name: "lapsed, with a delay", past: func(c *caller, name string) grant {
			g := c.takeWith(ask{name: name, delay: time.Hour})
			c.age(name)
			return g
		}, want: "released granted"},
		{name: "to be held at least", past: func(c *caller, name string) grant { return c.takeWith(ask{name: name, hold: time.Hour}) }, want: "released kept"},
		{name: "nobody was told of it", past: func(c *caller, name string) grant {
			return c.takeWith(ask{name: name, hold: time.Hour})
		}, unheld: true, want: "released granted"},
		{name: "released before", past: func(c *caller, name string) grant { g := c.take(name); c.release(g); return g }, want: "gone granted"},
		{name: "another's now", past: func(c *caller, name string) grant { g := c.take(name); c.age(name); c.take(name); return g }, want: "gone held"},
		{name: "nobody's ever", past: func(_ *caller, name string) grant { return grant{name: name, id: newID()} }, want: "gone granted"},
		{name: "to itself", past: taken, again: true, want: "released spent"},
		{name: "revoked", past: func(c *caller, name string) grant {
			g := c.take(name)
			c.exec(`SELECT pglock.revoke($1, gen_random_uuid(), 'operator', 0, true)`, name)
			return g
		}, want: "gone held"},
		{name: "to what was revoked", past: func(c *caller, name string) grant {
			revoked := newID()
			c.takeWith(ask{name: name, id: revoked})
			c.exec(`SELECT pglock.revoke($1, gen_random_uuid(), 'operator', 0, true)`, name)
			held := one[string](c, `SELECT acquisition::text FROM pglock.leases WHERE name = $1`, name)
			return grant{name: name, id: held, token: -1}
		}, want: "released spent"},
		{name: "for longer than the cap", past: taken, ask: ask{ttl: time.Hour}, want: "released ttl_too_long"},
		{name: "a TTL that no lease has", past: taken, ask: ask{ttl: time.Millisecond}, want: "released invalid"},
		{name: "a TTL that no interval has", past: taken, ask: ask{ttl: 1<<63 - 1}, want: "released ttl_too_long"},
		{name: "to a reader", past: taken, ask: ask{kind: -1}, want: "released granted"},
		{name: "to a permit", past: taken, ask: ask{kind: 3}, want: "released granted"},
		{name: "from a reader", past: func(c *caller, name string) grant { return c.takeWith(ask{name: name, kind: -1}) }, want: "released granted"},
		{name: "from the last of two readers", past: func(c *caller, name string) grant {
			c.takeWith(ask{name: name, kind: -1})
			return c.takeWith(ask{name: name, kind: -1})
		}, want: "released held"},
		{name: "from a permit", past: func(c *caller, name string) grant { return c.takeWith(ask{name: name, kind: 2}) }, want: "released granted"},
		{name: "a sequence that fell behind", past: func(c *caller, name string) grant {
			g := c.take(name)
			c.exec(`UPDATE pglock.leases SET token = token + 1000000 WHERE name = $1`, name)
			return g
		}, want: "released granted"},
		{name: "a token that this database never drew", past: taken, ask: ask{seen: 1 << 52}, want: "released stale"},
		{name: "while grants are held back", past: func(c *caller, name string) grant {
			g := c.take(name)
			c.exec(`UPDATE pglock.guard SET no_grants_before = clock_timestamp() + interval '1 hour'`)
			return g
		}, want: "released held_back"},
		{name: "after a failover", past: func(c *caller, name string) grant {
			g := c.take(name)
			c.exec(`UPDATE pglock.guard SET started = started - interval '1 s'`)
			return g
		}, want: "released held_back"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			type outcome struct {
				said, stored string
			}
			var got [2]outcome
			for i, beside := range []string{"", "beside"} { // what else ends in the same call keeps it from the short way
				c := newCaller(t, pgtest.DB(t))
				c.t = t
				const name = "a"
				g := tc.past(c, name)
				a := tc.ask
				a.name, a.id = name, newID()
				if tc.again {
					a.id = g.id
				}
				if g.token < 0 {
					a.id = one[string](c, `SELECT revoked::text FROM pglock.leases WHERE name = $1`, name)
				}
				before := one[int64](c, `SELECT coalesce(max(token), 0) FROM pglock.leases WHERE name = $1`, name)
				ends := []grant{g}
				if beside != "" {
					ends = append(ends, grant{name: beside, id: newID()})
				}
				ended, granted := c.exchange(ends, tc.unheld, a)
				got[i] = outcome{ended + " " + granted.status, c.stored(a)}
				want(t, "the answer"+beside, got[i].said, tc.want)
				if granted.status == "granted" {
					if granted.token <= before && a.kind == 0 {
						t.Errorf("token %d is not after %d", granted.token, before)
					}
					want(t, "the stored token", one[int64](c, `SELECT max(token) FROM pglock.leases WHERE acquisition = $1`, a.id), granted.token)
					want(t, "its label", granted.owner, a.label)
					if left := granted.remaining; left > a.timeToLive() || left < a.timeToLive()-5*time.Second {
						t.Errorf("%v are left of %v", left, a.timeToLive())
					}
				}
			}
			want(t, "what is stored", got[0].stored, got[1].stored)
		})
	}
}

// Whoever has a transaction tied to the grant is not passed by, and nothing is lost.
func TestAHandOverKeepsOffATiedTransaction(t *testing.T) {
	t.Parallel()
	for _, strength := range []string{"KEY SHARE", "SHARE", "UPDATE"} {
		t.Run(strength, func(t *testing.T) {
			t.Parallel()
			db := pgtest.DB(t)
			c := newCaller(t, db)
			g, a := c.take("a"), ask{name: "a", id: newID()}
			unlock := lock(t, db, "a", strength)
			ended, granted := c.exchange([]grant{g}, false, a)
			if granted.status == "granted" {
				t.Errorf("it was granted while it was locked FOR %s", strength)
			}
			unlock()
			if ended == "locked" {
				ended, _ = c.exchange([]grant{g}, false, a)
			}
			want(t, "the end", ended, "released")
			want(t, "afterwards", c.acquire(a).status, "granted")
		})
	}
}

// Whoever has the lock by way of a hand-over is not marked as waiting for it any longer.
func TestAHandOverTakesTheMarkAway(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, s := newCaller(t, db), newSleeper(t, db)
	g := c.take("a")
	s.mark(s.id, "a", 7)
	const sql = `SELECT string_agg(concat_ws(' ', status, awaited), ', ') FROM pglock.exchange(ARRAY['a'], ARRAY[$1::uuid], NULL, NULL, ARRAY['a'], ARRAY[gen_random_uuid()],
		'', ARRAY[30000000::bigint], NULL, NULL, 0, client => $2::text::uuid, waits => ARRAY[7::bigint])`
	want(t, "the answers", one[string](c, sql, g.id, s.id), "released f, granted f")
	want(t, "marks that are left", c.marks(), 0)
}

// exchange ends grants, and asks for one more in the same call. It answers what became of the first.
func (c *caller) exchange(ends []grant, unheld bool, a ask) (ended string, got answer) {
	c.t.Helper()
	var names, ids []string
	var voids []bool
	var slots []int
	for _, g := range ends {
		names, ids, voids, slots = append(names, g.name), append(ids, g.id), append(voids, unheld), append(slots, g.slot)
	}
	rows, err := c.conn.Query(c.t.Context(), `SELECT ord, ended, status, coalesce(token, 0), coalesce(owner, ''), since, coalesce(remaining_us, 0), coalesce(slot, 0)
		FROM pglock.exchange($1, $2::text[]::uuid[], $3, $4, ARRAY[$5], ARRAY[$6::text::uuid], $7, ARRAY[$8::bigint], ARRAY[$9::bigint], ARRAY[$10::text], $11,
		ARRAY[$12::bigint], ARRAY[$13::int])`, names, ids, voids, slots, a.name, a.id, a.label, a.timeToLive().Microseconds(), a.hold.Microseconds(), a.meta, a.seen,
		a.delay.Microseconds(), a.kind)
	if err != nil {
		c.t.Fatal(err)
	}
	var ord int
	var over bool
	var one answer
	var us int64
	_, err = pgx.ForEachRow(rows, []any{&ord, &over, &one.status, &one.token, &one.owner, &one.since, &us, &one.slot}, func() error {
		one.remaining = time.Duration(us) * time.Microsecond
		switch {
		case !over:
			got = one
		case ord == 1:
			ended = one.status
		}
		return nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return ended, got
}

// timeToLive is what acquire is asked for.
func (a ask) timeToLive() time.Duration {
	if a.ttl == 0 {
		return 30 * time.Second
	}
	return a.ttl
}
