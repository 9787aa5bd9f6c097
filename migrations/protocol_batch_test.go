package migrations_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// In a batch of several, what is plain is granted and ended all at once, and the rest one by one. Nobody must be able to tell: each
// is asked for alone and in a batch, of two names with the same past.
func TestABatchAnswersAsItsPartsDo(t *testing.T) {
	t.Parallel()
	meta := `{"by": "a batch"}`
	cases := []struct {
		name string
		past func(c *caller, name string) (id string) // of the acquisition to ask with; empty: a new one
		ask  ask
		want string
	}{
		{name: "never asked for", want: "granted"},
		{name: "released", past: func(c *caller, name string) string { c.release(c.take(name)); return "" }, want: "granted"},
		{
			name: "with all that it may have", past: func(c *caller, name string) string { c.release(c.take(name)); return "" },
			ask: ask{label: "me", ttl: 20 * time.Second, hold: time.Minute, delay: time.Hour, meta: &meta}, want: "granted",
		},
		{name: "what the last one had is gone", past: func(c *caller, name string) string {
			c.release(c.takeWith(ask{name: name, hold: time.Minute, delay: time.Hour, meta: &meta}))
			c.age(name)
			return ""
		}, want: "granted"},
		{name: "held", past: func(c *caller, name string) string { c.take(name); return "" }, want: "held"},
		{name: "lapsed", past: func(c *caller, name string) string { c.take(name); c.age(name); return "" }, want: "granted"},
		{name: "kept by its delay", past: func(c *caller, name string) string {
			c.takeWith(ask{name: name, delay: time.Hour})
			c.age(name)
			return ""
		}, want: "kept"},
		{name: "kept for as long as was asked", past: func(c *caller, name string) string {
			c.release(c.takeWith(ask{name: name, hold: time.Hour}))
			return ""
		}, want: "kept"},
		{name: "again while it lives", past: func(c *caller, name string) string { return c.take(name).id }, want: "granted"},
		{name: "again after its release", past: func(c *caller, name string) string { g := c.take(name); c.release(g); return g.id }, want: "spent"},
		{name: "again after its time", past: func(c *caller, name string) string { g := c.take(name); c.age(name); return g.id }, want: "spent"},
		{name: "again after it was revoked", past: func(c *caller, name string) string {
			g := c.take(name)
			c.exec(`SELECT pglock.revoke($1, gen_random_uuid(), 'operator', 0, true)`, name)
			c.age(name)
			return g.id
		}, want: "spent"},
		{name: "longer than the cap", past: func(c *caller, name string) string { c.release(c.take(name)); return "" }, ask: ask{ttl: time.Hour}, want: "ttl_too_long"},
		{name: "a TTL that no lease has", past: func(c *caller, name string) string { c.release(c.take(name)); return "" }, ask: ask{ttl: time.Millisecond}, want: "invalid"},
		{name: "a TTL that no interval has", past: func(c *caller, name string) string { c.release(c.take(name)); return "" }, ask: ask{ttl: 1<<63 - 1}, want: "ttl_too_long"},
		{name: "a reader", past: func(c *caller, name string) string { c.release(c.take(name)); return "" }, ask: ask{kind: -1}, want: "granted"},
		{name: "a permit", ask: ask{kind: 3}, want: "granted"},
		{name: "alone, after readers", past: func(c *caller, name string) string { c.release(c.takeWith(ask{name: name, kind: -1})); return "" }, want: "granted"},
		{name: "alone, beside readers", past: func(c *caller, name string) string { c.takeWith(ask{name: name, kind: -1}); return "" }, want: "held"},
		{name: "alone, of a semaphore", past: func(c *caller, name string) string { c.takeWith(ask{name: name, kind: 2}); return "" }, want: "other_kind"},
		{name: "a sequence that fell behind", past: func(c *caller, name string) string {
			c.release(c.take(name))
			c.exec(`UPDATE pglock.leases SET token = token + 1000000 WHERE name = $1`, name)
			return ""
		}, want: "granted"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := newCaller(t, pgtest.DB(t))
			c.t = t
			var asks [2]ask
			for i, name := range []string{"alone", "in a batch"} {
				a := tc.ask
				a.name = name
				if tc.past != nil {
					a.id = tc.past(c, name)
				}
				if a.id == "" {
					a.id = newID()
				}
				asks[i] = a
			}
			before := one[int64](c, `SELECT coalesce(max(token), 0) FROM pglock.leases WHERE name IN ('alone', 'in a batch')`)
			batch := c.acquireBatch(ask{name: "one more"}, asks[1], ask{name: "and one"})
			alone := c.acquire(asks[0])
			want(t, "alone", alone.status, tc.want)
			want(t, "in a batch", batch[1].status, tc.want)
			want(t, "the first beside it", batch[0].status, "granted")
			want(t, "the last beside it", batch[2].status, "granted")
			for _, a := range []struct {
				what string
				*answer
				ask
			}{{"alone", &alone, asks[0]}, {"in a batch", &batch[1], asks[1]}} {
				if a.status == "granted" && a.ask.kind == 0 && tc.name != "again while it lives" && a.token <= before {
					t.Errorf("%s: token %d is not after %d", a.what, a.token, before)
				}
				if a.status == "granted" {
					want(t, a.what+": the stored token", one[int64](c, `SELECT max(token) FROM pglock.leases WHERE acquisition = $1`, a.ask.id), a.token)
				}
			}
			if alone.owner != batch[1].owner || alone.slot != batch[1].slot || (alone.since == nil) != (batch[1].since == nil) ||
				(alone.remaining-batch[1].remaining).Abs() > 20*time.Second {
				t.Errorf("the answers differ:\n%+v\n%+v", alone, batch[1])
			}
			want(t, "what is stored", c.stored(asks[1]), c.stored(asks[0]))
		})
	}
}

// One of them is granted it, the other is told so.
func TestABatchAsksForANameTwice(t *testing.T) {
	t.Parallel()
	c := newCaller(t, pgtest.DB(t))
	c.release(c.take("a"))
	a, b := ask{name: "a", id: newID()}, ask{name: "a", id: newID()}
	got := c.acquireBatch(a, b)
	if got[0].status == "held" {
		a, got[0], got[1] = b, got[1], got[0]
	}
	want(t, "one", got[0].status, "granted")
	want(t, "the other", got[1].status, "held")
	want(t, "the token that it is told", got[1].token, got[0].token)
	want(t, "whose it is", one[string](c, `SELECT acquisition::text FROM pglock.leases WHERE name = 'a'`), a.id)
}

// A lot is granted all or none, whatever else is in the batch.
func TestABatchWithALot(t *testing.T) {
	t.Parallel()
	c := newCaller(t, pgtest.DB(t))
	for _, name := range []string{"a", "b", "c", "d"} {
		c.release(c.take(name))
	}
	c.take("c")
	const sql = `SELECT string_agg(a.status, ' ' ORDER BY a.ord) FROM pglock.acquire(ARRAY['a', 'b', 'c', 'd'],
		ARRAY[gen_random_uuid(), l.id, l.id, gen_random_uuid()], 'me', array_fill(30000000::bigint, ARRAY[4]), lots => ARRAY[0, 1, 1, 2]) a`
	want(t, "the answers", one[string](c, `WITH l AS MATERIALIZED (SELECT gen_random_uuid() AS id) SELECT (`+sql+`) FROM l`), "granted spared held granted")
	want(t, "b", c.try("b"), "granted")
}

// A grant waits for whoever has tied a transaction to the one before, and does not go past it.
func TestABatchKeepsOffATiedTransaction(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	c.take("a")
	c.release(c.take("b"))
	unlock := lock(t, db, "a", "KEY SHARE")
	db.Age(t, "a", time.Minute)
	got := c.acquireBatch(ask{name: "a"}, ask{name: "b"})
	want(t, "the tied one", got[0].status, "retry")
	want(t, "the other", got[1].status, "granted")
	unlock()
	want(t, "afterwards", c.try("a"), "granted")
}

// Whoever is granted a lock in a batch is not marked as waiting for it any longer.
func TestABatchTakesMarksAway(t *testing.T) {
	t.Parallel()
	c := newCaller(t, pgtest.DB(t))
	const me = "11111111-0000-4000-8000-000000000000"
	held := c.take("a")
	want(t, "the mark", one[string](c, `SELECT status FROM pglock.mark(ARRAY['a'], $1, ARRAY[7::bigint], ARRAY[false])`, me), "marked")
	c.release(held)
	want(t, "the batch", one[string](c, `SELECT string_agg(status, ' ') FROM pglock.acquire(ARRAY['a', 'b'], ARRAY[gen_random_uuid(), gen_random_uuid()], 'me',
		ARRAY[30000000, 30000000], client => $1, waits => ARRAY[7, 0])`, me), "granted granted")
	want(t, "marks that are left", one[int](c, `SELECT count(*) FROM pglock.waits`), 0)
}

func TestABatchOfReleasesAnswersAsItsPartsDo(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name   string
		past   func(c *caller, name string) grant
		unheld bool
		want   string
	}{
		{"held", func(c *caller, name string) grant { return c.take(name) }, false, "released"},
		{"lapsed", func(c *caller, name string) grant { g := c.take(name); c.age(name); return g }, false, "released"},
		{"to be held at least", func(c *caller, name string) grant { return c.takeWith(ask{name: name, hold: time.Hour}) }, false, "released"},
		{"nobody was told of it", func(c *caller, name string) grant { return c.takeWith(ask{name: name, hold: time.Hour}) }, true, "released"},
		{"released before", func(c *caller, name string) grant { g := c.take(name); c.release(g); return g }, false, "gone"},
		{"another's now", func(c *caller, name string) grant { g := c.take(name); c.age(name); c.take(name); return g }, false, "gone"},
		{"a permit", func(c *caller, name string) grant { return c.takeWith(ask{name: name, kind: 2}) }, false, "released"},
		{"a reader", func(c *caller, name string) grant { return c.takeWith(ask{name: name, kind: -1}) }, false, "released"},
		{"revoked", func(c *caller, name string) grant {
			g := c.take(name)
			c.exec(`SELECT pglock.revoke($1, gen_random_uuid(), 'operator', 0, true)`, name)
			return g
		}, false, "gone"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := newCaller(t, pgtest.DB(t))
			c.t = t
			alone, many, beside := tc.past(c, "alone"), tc.past(c, "in a batch"), c.take("beside")
			const sql = `SELECT string_agg(r.status, ' ' ORDER BY r.ord) FROM pglock.release($1, $2::text[]::uuid[], false, $3, true, $4) r`
			want(t, "alone", one[string](c, sql, []string{"alone"}, []string{alone.id}, []bool{tc.unheld}, []int{alone.slot}), tc.want)
			want(t, "in a batch", one[string](c, sql, []string{"in a batch", "beside"}, []string{many.id, beside.id}, []bool{tc.unheld, false},
				[]int{many.slot, 0}), tc.want+" released")
			want(t, "what is stored", c.stored(ask{name: "in a batch", id: many.id}), c.stored(ask{name: "alone", id: alone.id}))
		})
	}
}

// What comes between the look at a row and its lock is seen under the lock, or by the second look, one by one.
func TestABatchSeesWhatCameBetweenLookAndLock(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name    string
		between func(db *pgtest.Database, other *caller)
		want    string
	}{
		{"a change of no account", func(_ *pgtest.Database, other *caller) {
			other.exec(`UPDATE pglock.leases SET metadata = '{}' WHERE name = 'a'`)
		}, "granted"},
		{"a grant", func(_ *pgtest.Database, other *caller) { other.take("a") }, "held"},
		{"a grant that was released", func(_ *pgtest.Database, other *caller) { other.release(other.take("a")) }, "granted"},
		{"a grant that is to be kept", func(_ *pgtest.Database, other *caller) {
			other.release(other.takeWith(ask{name: "a", hold: time.Hour}))
		}, "kept"},
		{"readers", func(_ *pgtest.Database, other *caller) { other.takeAs("a", reader) }, "held"},
		{"a semaphore that nobody has", func(_ *pgtest.Database, other *caller) { other.release(other.takeAs("a", 2)) }, "granted"},
		{"a revocation", func(_ *pgtest.Database, other *caller) {
			other.exec(`SELECT pglock.revoke('a', gen_random_uuid(), 'operator', 0, true)`)
		}, "granted"},
		{"a prune", func(db *pgtest.Database, other *caller) {
			db.Age(other.t, "a", 24*time.Hour)
			want(other.t, "pruned", other.prune("1 hour", 100), 1)
		}, "granted"},
		{"a row in the place of one that was deleted", func(_ *pgtest.Database, other *caller) {
			other.exec(`DELETE FROM pglock.leases WHERE name = 'a'`)
			other.exec(`VACUUM pglock.leases`) // which frees nothing that the batch may still look at
			other.take("z")
			other.take("a")
		}, "held"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.DB(t)
			c, other := newCaller(t, db), newCaller(t, db)
			c.release(c.take("a"))
			c.release(c.take("b"))
			hookInto(t, db, beforeBatchLock)
			a := ask{name: "a", id: newID()}
			resume := stalled(t, db, c, func() []answer { return c.acquireBatch(a, ask{name: "b"}) })
			tc.between(db, other)
			before := one[int64](other, `SELECT coalesce(max(token), 0) FROM pglock.leases WHERE name = 'a'`)
			got := resume()
			want(t, "the answer", got[0].status, tc.want)
			want(t, "the other one", got[1].status, "granted")
			granted := one[int64](c, `SELECT coalesce(max(token), 0) FROM pglock.leases WHERE name = 'a' AND acquisition = $1`, a.id)
			if tc.want != "granted" {
				want(t, "the token of a grant", granted, 0)
			} else if want(t, "the stored token", granted, got[0].token); granted <= before {
				t.Errorf("token %d after %d", granted, before)
			}
		})
	}
}

func TestABatchOfReleasesSeesWhatCameBetweenLookAndLock(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name    string
		between func(db *pgtest.Database, other *caller, g grant)
		want    string
	}{
		{"a renewal", func(_ *pgtest.Database, other *caller, g grant) { want(other.t, "renewal", other.renew(g), "renewed") }, "released"},
		{"the same release", func(_ *pgtest.Database, other *caller, g grant) {
			want(other.t, "release", other.release(g), "released")
		}, "gone"},
		{"another's grant", func(db *pgtest.Database, other *caller, _ grant) {
			db.Age(other.t, "a", time.Minute)
			other.take("a")
		}, "gone"},
		{"a revocation", func(_ *pgtest.Database, other *caller, _ grant) {
			other.exec(`SELECT pglock.revoke('a', gen_random_uuid(), 'operator', 0, true)`)
		}, "gone"},
		{"a deletion", func(_ *pgtest.Database, other *caller, _ grant) {
			other.exec(`DELETE FROM pglock.leases WHERE name = 'a'`)
		}, "gone"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.DB(t)
			c, other := newCaller(t, db), newCaller(t, db)
			a, b := c.take("a"), c.take("b")
			hookInto(t, db, beforeBatchEnd)
			const sql = `SELECT string_agg(r.status, ' ' ORDER BY r.ord) FROM pglock.release(ARRAY['a', 'b'], ARRAY[$1, $2]::uuid[]) r`
			resume := stalled(t, db, c, func() string { return one[string](c, sql, a.id, b.id) })
			tc.between(db, other, a)
			const present = `SELECT coalesce(max(l::text), '') FROM pglock.leases l WHERE name = 'a'`
			before := one[string](other, present)
			want(t, "the answers", resume(), tc.want+" released")
			if tc.want == "gone" {
				want(t, "what another has", one[string](other, present), before)
			} else {
				want(t, "the next", other.try("a"), "granted")
			}
		})
	}
}

// A plan that was made when there were few leases may be in use when there are many, before anybody has counted them again.
func TestABatchReadsNoMoreThanItsRows(t *testing.T) {
	t.Parallel()
	c := newCaller(t, pgtest.DB(t))
	c.exec(`ALTER TABLE pglock.leases SET (autovacuum_enabled = off)`)
	const add = `INSERT INTO pglock.leases (name) SELECT 'n' || n FROM generate_series($1::int, $2) n`
	names := one[[]string](c, `SELECT array_agg('n' || n) FROM generate_series(1, 10) n`)
	const reads = `SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables WHERE relid = 'pglock.leases'::regclass`
	ids := make([]string, len(names))
	verb := func(n int, status, sql string, args ...any) (read int) {
		c.begin()
		defer c.commit()
		before := one[int](c, reads)
		want(t, "answers that say "+status, one[int](c, `SELECT count(*) FROM pglock.`+sql+` WHERE status = '`+status+`'`, append([]any{names, ids}, args...)...), n)
		return one[int](c, reads) - before
	}
	round := func(most int) {
		for i := range ids {
			ids[i] = newID()
		}
		granted := verb(10, "granted", `acquire($1, $2::text[]::uuid[], 'me', array_fill(30000000::bigint, ARRAY[10]))`)
		tokens := one[[]int64](c, `SELECT array_agg(token ORDER BY acquisition) FROM pglock.leases WHERE expires_at > 'epoch'`)
		renewed := verb(1, "renewed", `renew($1, $2::text[]::uuid[], $3)`, tokens)
		released := verb(10, "released", `release($1, $2::text[]::uuid[])`)
		if most > 0 && max(granted, renewed, released) > most {
			t.Errorf("of 20,000 leases %d were read to grant ten of them, %d to renew and %d to release them", granted, renewed, released)
		}
	}
	c.exec(add, 1, 100)
	c.exec(`ANALYZE pglock.leases`)
	for range 8 { // from the sixth on it is one plan for all calls
		round(0)
	}
	c.exec(add, 101, 20_000)
	round(1000)
}

// The names are those that the database makes of them: where the sequence fell behind, the token that was mended goes into the row that
// was granted, whatever shape the arrays have.
func TestABatchMendsNoOtherToken(t *testing.T) {
	t.Parallel()
	c := newCaller(t, pgtest.DB(t))
	held := c.take("held")
	before := c.row("held")
	for name, names := range map[string]string{"from 0": `[0:1]={from 0,held}`, "nested": `{{nested},{held}}`} {
		c.release(c.take(name))
		c.exec(`UPDATE pglock.leases SET token = token + 1000000 WHERE name = $1`, name)
		id := newID()
		token := one[int64](c, `SELECT max(token) FROM pglock.acquire($1::text::text[], ARRAY[$2, $3]::uuid[], 'me', ARRAY[30000000, 30000000]) WHERE status = 'granted'`,
			names, id, newID())
		want(t, name+": the stored token", one[int64](c, `SELECT token FROM pglock.leases WHERE acquisition = $1`, id), token)
		want(t, name+": another's lease", c.row("held"), before)
	}
	want(t, "its renewal", c.renew(held), "renewed")
}

// A row that somebody has locked is none of the batch's, and holds up nobody else.
func TestABatchOfReleasesPassesByALockedRow(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	a, b := c.take("a"), c.take("b")
	unlock := lock(t, db, "a", "SHARE")
	const sql = `SELECT string_agg(r.status, ' ' ORDER BY r.ord) FROM pglock.release(ARRAY['a', 'b'], ARRAY[$1, $2]::uuid[]) r`
	want(t, "while it is locked", one[string](c, sql, a.id, b.id), "locked released")
	unlock()
	want(t, "afterwards", c.release(a), "released")
}

// acquireBatch asks for all in one call.
func (c *caller) acquireBatch(asks ...ask) []answer {
	c.t.Helper()
	var names, ids []string
	var ttls, holds, delays []int64
	var metas []*string
	var kinds []int
	for _, a := range asks {
		if a.id == "" {
			a.id = newID()
		}
		if a.ttl == 0 {
			a.ttl = 30 * time.Second
		}
		names, ids, ttls, holds = append(names, a.name), append(ids, a.id), append(ttls, a.ttl.Microseconds()), append(holds, a.hold.Microseconds())
		delays, metas, kinds = append(delays, a.delay.Microseconds()), append(metas, a.meta), append(kinds, a.kind)
	}
	rows, err := c.conn.Query(c.t.Context(), `SELECT ord, status, coalesce(token, 0), coalesce(owner, ''), since, coalesce(remaining_us, 0), coalesce(slot, 0)
		FROM pglock.acquire($1, $2::text[]::uuid[], $3, $4, $5, $6, 0, $7, $8)`, names, ids, asks[len(asks)/2].label, ttls, holds, metas, delays, kinds)
	if err != nil {
		c.t.Fatal(err)
	}
	defer rows.Close()
	got := make([]answer, len(asks))
	for rows.Next() {
		var ord int
		var a answer
		var us int64
		if err := rows.Scan(&ord, &a.status, &a.token, &a.owner, &a.since, &us, &a.slot); err != nil {
			c.t.Fatal(err)
		}
		a.remaining = time.Duration(us) * time.Microsecond
		if got[ord-1].status != "" {
			c.t.Errorf("%q is answered twice", names[ord-1])
		}
		got[ord-1] = a
	}
	if err := rows.Err(); err != nil {
		c.t.Fatal(err)
	}
	return got
}

// age lets a lease lapse, and what it was to be kept for, but not its delay.
func (c *caller) age(name string) {
	c.t.Helper()
	c.exec(`UPDATE pglock.leases SET granted_at = granted_at - interval '1 minute', expires_at = least(expires_at, clock_timestamp() - interval '1 s'),
		not_before = least(not_before, clock_timestamp()) WHERE name = $1`, name)
}

// stored is what is stored of a name, but for tokens and the exact time.
func (c *caller) stored(a ask) string {
	c.t.Helper()
	const sql = `SELECT coalesce(string_agg(concat_ws('|', slot, token > 0, acquisition = $2, revoked IS NOT NULL, owner, expires_at > clock_timestamp(), expires_at = 'epoch',
		not_before > clock_timestamp(), not_before = 'epoch', ttl, delay, metadata, permits), E'\n' ORDER BY slot), '') FROM pglock.leases WHERE name = $1`
	return fmt.Sprint(one[string](c, sql, a.name, a.id))
}
