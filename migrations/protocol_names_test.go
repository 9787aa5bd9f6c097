package migrations_test

import (
	"strings"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// Every name of 1 to 255 bytes is a lock of its own.
func TestOddNamesAreLocksOfTheirOwn(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	names := []string{
		" ", "  ", "a", "A", "a ", " a", "a\n", "\t", "\x01", "a/b", "a\\b", "a'b", `a"b`, "'; DROP TABLE pglock.leases; --", "$1", "%", "_", "{a,b}",
		"NULL", "null", "\u00e9", "e\u0301", "用户", "🔒", "\ufeff", "\u202e", "\U0010ffff", strings.Repeat("x", 254), strings.Repeat("x", 255),
		strings.Repeat("é", 127) + "x",
	}
	for _, name := range names {
		c.take(name)
	}
	for _, name := range names {
		want(t, "second try", c.try(name), "held")
	}
	want(t, "rows", one[int](c, `SELECT count(*) FROM pglock.leases WHERE token > 0`), len(names))
}

func TestBadNamesAreRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	for _, name := range []string{"", strings.Repeat("x", 256), strings.Repeat("é", 128), strings.Repeat("x", 100_000)} {
		want(t, "a name of some bytes", c.try(name), "invalid")
	}
	for _, name := range []string{"a\x00b", "\xff"} {
		want(t, "text that is none", sqlState(c.fails(acquireOne, name, newID(), "", int64(1e6), int64(0), nil, int64(0), 0, "", int64(0))), "22021")
	}
	want(t, "rows", one[int](c, `SELECT count(*) FROM pglock.leases`), 0)
}

// Elements that are missing make their own answer invalid, and nobody else's.
func TestArraysOfUnequalLength(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	c.take("held")
	for args, wanted := range map[string]string{
		`'{}', '{}', '', '{}'`:                                                                      "",
		`'{}', ARRAY[gen_random_uuid()], '', '{1000000}'`:                                           "",
		`'{a1,a2}', ARRAY[gen_random_uuid()], '', '{1000000,1000000}'`:                              "granted invalid",
		`'{b1,b2}', ARRAY[gen_random_uuid(),gen_random_uuid()], '', '{1000000}'`:                    "granted invalid",
		`'{c1}', ARRAY[gen_random_uuid(),gen_random_uuid()], '', '{1000000,1000000}'`:               "granted",
		`'{d1,NULL,d3}', array_fill(gen_random_uuid(), '{3}'), '', '{1000000,1000000,1000000}'`:     "granted invalid granted",
		`'{e1,e2}', ARRAY[NULL,gen_random_uuid()], '', '{1000000,1000000}'`:                         "invalid granted",
		`'{f1,f2}', array_fill(gen_random_uuid(), '{2}'), '', '{NULL,1000000}'`:                     "invalid granted",
		`'{held,g2}', ARRAY[NULL,gen_random_uuid()], '', '{1000000,NULL}'`:                          "invalid invalid",
		`'{h1,h2}', array_fill(gen_random_uuid(), '{2}'), '', '{1000000,1000000}', '{0}', '{NULL}'`: "granted granted",
		`'{i1}', ARRAY[gen_random_uuid()], '', '{1000000}', NULL, NULL, NULL`:                       "granted",
	} {
		got := one[string](c, `SELECT coalesce(string_agg(status, ' ' ORDER BY ord), '') FROM pglock.acquire(`+args+`)`)
		want(t, args, got, wanted)
	}
	c.noAnswers(`renew('{}', '{}', '{}')`, `release('{}', '{}')`, `renew('{}', ARRAY[gen_random_uuid()], '{1}')`)
	want(t, "names that nobody granted", one[string](c, `SELECT concat(
		(SELECT string_agg(status, ' ') FROM pglock.renew(ARRAY[NULL, '', 'nobody''s'], '{}', '{}')),
		(SELECT string_agg(status, ' ') FROM pglock.release(ARRAY[NULL, '', 'nobody''s'], '{}')))`), "gone gone gonegone gone gone")
	want(t, "no names at all", sqlState(c.fails(`SELECT pglock.acquire(NULL, NULL, '', NULL)`)), "22004")
}

// noAnswers checks that calls without names have no answers.
func (c *caller) noAnswers(calls ...string) {
	c.t.Helper()
	for _, call := range calls {
		want(c.t, call, one[int](c, `SELECT count(*) FROM pglock.`+call), 0)
	}
}

// Sessions in other time zones, with other date and interval styles, agree on who holds what and for how long.
func TestTimeZonesChangeNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	c.exec(`SET timezone = 'UTC'`)
	g := c.takeWith(ask{name: "a", ttl: 30 * time.Second})
	for zone, style := range map[string][2]string{
		"Pacific/Auckland":    {"German", "iso_8601"},
		"America/Los_Angeles": {"SQL, DMY", "sql_standard"},
		"Asia/Kathmandu":      {"Postgres, MDY", "postgres_verbose"},
		"-12:30":              {"ISO, YMD", "postgres"},
	} {
		other := newCaller(t, db)
		other.exec(`SELECT set_config('timezone', $1, false), set_config('datestyle', $2, false), set_config('intervalstyle', $3, false)`, zone, style[0], style[1])
		got := other.acquire(ask{name: "a"})
		if got.status != "held" || got.remaining > 30*time.Second || got.remaining < time.Second {
			t.Errorf("%s: %+v, want held for 30 s", zone, got)
		}
		want(t, "renewal in "+zone, other.renew(g), "renewed")
		mine := other.takeWith(ask{name: zone, hold: time.Hour})
		want(t, "release in "+zone, other.release(mine), "released")
		if got := c.acquire(ask{name: zone}); got.status != "kept" || got.remaining > time.Hour || got.remaining < 59*time.Minute {
			t.Errorf("held back in %s: %+v, want an hour", zone, got)
		}
	}
	want(t, "columns without a time zone", one[int](c, `SELECT count(*) FROM information_schema.columns
		WHERE table_schema = 'pglock' AND data_type IN ('timestamp without time zone', 'time without time zone', 'date')`), 0)
}
