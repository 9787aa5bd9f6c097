package migrations_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

const (
	acquireFails = `SELECT * FROM pglock.acquire(ARRAY['a'], ARRAY['00000000-0000-4000-8000-000000000000'::uuid], '', ARRAY[1000000])`
	checkInFails = `SELECT * FROM pglock.check_in(0)`
	renewFails   = `SELECT * FROM pglock.renew(ARRAY['a'], ARRAY['00000000-0000-4000-8000-000000000000'::uuid], ARRAY[1])`
	releaseFails = `SELECT * FROM pglock.release(ARRAY['a'], ARRAY['00000000-0000-4000-8000-000000000000'::uuid])`
)

// A later look must see more than an earlier one. In another isolation a call is refused, and not found out by its races.
func TestOnlyReadCommittedIsGranted(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	c.take("a")
	for _, isolation := range []string{"repeatable read", "serializable"} {
		c.exec(`SELECT set_config('default_transaction_isolation', $1, false)`, isolation)
		for _, sql := range []string{acquireFails, checkInFails, renewFails, releaseFails} {
			var pg *pgconn.PgError
			if err := c.fails(sql); !errors.As(err, &pg) || pg.Code != "25000" || pg.Hint == "" {
				t.Errorf("%s: %v, want 25000 with a hint", isolation, err)
			}
		}
		c.exec(`BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE`)
		want(t, "pinned for one transaction", c.try("a"), "held")
		c.exec(`COMMIT`)
	}
}

// Nothing is answered where nothing could be granted: "held" would keep a caller from looking for the primary.
func TestReadOnlySessionIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, reader := newCaller(t, db), newCaller(t, db)
	g := c.take("a")
	reader.exec(`SET default_transaction_read_only = on`)
	refusesAll(t, reader, g)
	want(t, "renewal by another", c.renew(g), "renewed")
}

// refusesAll checks that a session that cannot write gets 25006 from every verb, for a lock that is held as for one that is
// free.
func refusesAll(t *testing.T, c *caller, g grant) {
	t.Helper()
	for _, sql := range []string{
		acquireFails,
		checkInFails,
		`SELECT * FROM pglock.acquire(ARRAY['nobody''s'], ARRAY[gen_random_uuid()], '', ARRAY[1000000])`,
		`SELECT * FROM pglock.acquire(ARRAY['` + g.name + `'], ARRAY['` + g.id + `'::uuid], '', ARRAY[1000000])`,
		`SELECT * FROM pglock.renew(ARRAY['` + g.name + `'], ARRAY['` + g.id + `'::uuid], ARRAY[1::bigint])`,
		`SELECT * FROM pglock.release(ARRAY['` + g.name + `'], ARRAY['` + g.id + `'::uuid])`,
	} {
		want(t, sql, sqlState(c.fails(sql)), "25006")
	}
}
