package migrations_test

import (
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// footprint is everything that a call could leave behind: WAL, transaction ids, tokens, and what is stored and locked in the
// rows. A server that nobody else uses stands still otherwise.
const footprint = `SELECT concat_ws(' ', pg_current_wal_insert_lsn(), pg_snapshot_xmax(pg_current_snapshot()), s.last_value, s.log_cnt, s.is_called,
	(SELECT string_agg(concat(l.ctid, l.xmin, l.xmax, l), ';' ORDER BY name) FROM pglock.leases l),
	(SELECT concat(g.ctid, g.xmin, g.xmax, g) FROM pglock.guard g)) FROM pglock.fencing_token s`

// Ten thousand calls that change nothing leave nothing behind: polling is free.
func TestLosingCostsNothing(t *testing.T) {
	t.Parallel()
	_, db := pgtest.OwnServer(t, pgtemp.Options{Settings: map[string]string{
		"autovacuum": "off", "wal_level": "minimal", "max_wal_senders": "0", // the server itself writes no WAL from time to time
	}})
	db.Exec(t, `UPDATE pglock.guard SET cap_us = 3600000000`)
	c, watch := newCaller(t, db), newCaller(t, db)
	watch.exec(`SET default_transaction_read_only = on`)
	held, over := c.takeWith(ask{name: "held", ttl: time.Hour}), c.take("over")
	db.Age(t, "over", time.Minute)
	end := lock(t, db, "over", "KEY SHARE")
	const names, ids = `array_fill($1::text, ARRAY[$2::int])`, `(SELECT array_agg(gen_random_uuid()) FROM generate_series(1, $2))`
	const acquire = `acquire(` + names + `, ` + ids + `, 'loser', array_fill(1000000::bigint, ARRAY[$2]))`
	retry := func(g grant) string {
		return `acquire(` + names + `, array_fill('` + g.id + `'::uuid, ARRAY[$2]), 'once more', array_fill(1000000::bigint, ARRAY[$2]))`
	}
	for _, call := range []struct {
		what, call, name, want string
		times                  int
	}{
		{"a losing try", acquire, "held", "held", pgtest.Rounds(3000, 10_000)},
		{"a try on a free row under somebody's KEY SHARE", acquire, "over", "retry", 300},
		{"a retry of what is held", retry(held), "held", "granted", 300},
		{"a retry of what is over", retry(over), "over", "spent", 300},
		{"a bad name", acquire, "", "invalid", 300},
		{"a renewal of what another has", `renew(` + names + `, ` + ids + `, array_fill(1::bigint, ARRAY[$2]))`, "held", "taken", 300},
		{"a renewal of what is gone", `renew(` + names + `, ` + ids + `, array_fill(1::bigint, ARRAY[$2]))`, "gone", "gone", 300},
		{"a release of what another has", `release(` + names + `, ` + ids + `)`, "held", "gone", 300},
	} {
		sql := `SELECT string_agg(DISTINCT status, ' ') FROM pglock.` + call.call
		want(t, call.what, one[string](c, sql, call.name, 10), call.want) // what the server notes on first sight is not counted
		before := one[string](watch, footprint)
		want(t, call.what, one[string](c, sql, call.name, call.times), call.want)
		want(t, "footprint of "+call.what, one[string](watch, footprint), before)
	}
	end()
	before := one[string](watch, footprint)
	c.take("over")
	if one[string](watch, footprint) == before {
		t.Error("a grant has no footprint either: nothing was measured")
	}
}

// Renewals of many leases in one statement leave the indexes alone, under somebody's long transaction too.
func TestRenewalsStayHOT(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, reader := newCaller(t, db), newCaller(t, db)
	c.takeTenThousand()
	reader.exec(`BEGIN ISOLATION LEVEL REPEATABLE READ`)
	reader.exec(`SELECT FROM pglock.leases`)
	c.stayHOT("of ten thousand", func() { want(t, "answers", c.renewAll(), "all renewed") })
	reader.exec(`COMMIT`)
}

// So do the renewals of one lease, again and again in commits of their own, while the oldest of its versions is still seen.
func TestRenewalsOfALongHeldLeaseStayHOT(t *testing.T) {
	t.Parallel()
	const renewals = 10
	calls := pgtest.Rounds(400, 1000)
	db := pgtest.DB(t)
	c, reader := newCaller(t, db), newCaller(t, db)
	hot := c.take("hot")
	reader.exec(`BEGIN ISOLATION LEVEL REPEATABLE READ`)
	reader.exec(`SELECT FROM pglock.leases`)
	for range calls {
		want(t, "answers", one[int](c, `SELECT count(*) FROM generate_series(1, $3::int) g,
			LATERAL pglock.renew(ARRAY['hot'], ARRAY[$1::uuid], ARRAY[$2::bigint + 0 * g]) r WHERE r.status = 'renewed'`, hot.id, hot.token, renewals), renewals)
	}
	if err := c.conn.Close(t.Context()); err != nil { // a session that ends reports what it has counted
		t.Fatal(err)
	}
	const counted = `SELECT n_tup_upd >= $1 FROM pg_stat_user_tables WHERE relid = 'pglock.leases'::regclass`
	db.WaitFor(t, counted, calls*renewals)
	n := pgtest.Query[[]int](t, db, `SELECT ARRAY[n_tup_hot_upd, n_tup_upd] FROM pg_stat_user_tables WHERE relid = 'pglock.leases'::regclass`)
	if n[0]*100 < n[1]*95 {
		t.Errorf("%d of %d renewals are HOT, want 95 %%", n[0], n[1])
	}
	reader.exec(`COMMIT`)
}

// stayHOT checks that few of the renewals touched an index.
func (c *caller) stayHOT(what string, renew func()) {
	c.t.Helper()
	const counts = `SELECT ARRAY[n_tup_hot_upd, n_tup_upd] FROM pg_stat_xact_user_tables WHERE relid = 'pglock.leases'::regclass`
	c.exec(`BEGIN`)
	before := one[[]int](c, counts)
	renew()
	after := one[[]int](c, counts)
	c.exec(`COMMIT`)
	hot, all := after[0]-before[0], after[1]-before[1]
	if all < 2000 || hot*100 < all*95 {
		c.t.Errorf("renewals %s: %d of %d are HOT, want 95 %%", what, hot, all)
	}
}
