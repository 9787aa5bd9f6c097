package migrations_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// A caller is one session that calls the functions of the protocol, a name at a time. It waits for no lock longer than a few
// seconds: nothing of the protocol may wait for a row, and what does fails its test. Its methods may be called from any
// goroutine, one at a time: a failure is an error of the test, and the zero answer.
type caller struct {
	t    *testing.T
	conn *pgx.Conn
}

func newCaller(t *testing.T, db *pgtest.Database) *caller {
	t.Helper()
	c := &caller{t, db.Conn(t)}
	c.exec(`SET lock_timeout = '3s'; SET synchronous_commit = on`) // the servers of tests have it off, which is the rare case
	return c
}

// exec runs a statement that must succeed.
func (c *caller) exec(sql string, args ...any) {
	c.t.Helper()
	if err := c.fails(sql, args...); err != nil {
		c.t.Errorf("%s: %v", sql, err)
	}
}

// fails runs a statement, for its error.
func (c *caller) fails(sql string, args ...any) error {
	_, err := c.conn.Exec(c.t.Context(), sql, args...)
	return err
}

// one is the one value that a query yields in a caller's session.
func one[T any](c *caller, sql string, args ...any) (v T) {
	c.t.Helper()
	if err := c.conn.QueryRow(c.t.Context(), sql, args...).Scan(&v); err != nil {
		c.t.Errorf("%s: %v", sql, err)
	}
	return v
}

// An ask is what a caller says to acquire. The zero value of all but the name is an acquisition that was never seen before,
// for as long as the default cap allows, so that no lease lapses under a test that has to wait for its turn.
type ask struct {
	name, id, label string
	ttl, hold       time.Duration
	meta            *string
	seen            int64
	kind            int // as leases.permits
	delay           time.Duration
	client          string // who waits, as mark has it
}

// An answer is what acquire says.
type answer struct {
	status    string
	token     int64
	owner     string
	since     *time.Time
	remaining time.Duration
	slot      int
}

const acquireOne = `SELECT status, coalesce(token, 0), coalesce(owner, ''), since, coalesce(remaining_us, 0), coalesce(slot, 0) FROM pglock.acquire(
	ARRAY[$1::text], ARRAY[$2::uuid], $3, ARRAY[$4::bigint], ARRAY[$5::bigint], ARRAY[$6::text], $7, ARRAY[$10::bigint], ARRAY[$8::int], NULL,
	nullif($9, '')::uuid)`

var ids atomic.Int64

// newID is an acquisition id that nobody has used yet.
func newID() string { return fmt.Sprintf("%08d-0000-4000-8000-000000000000", ids.Add(1)) }

func (c *caller) acquire(a ask) (got answer) {
	c.t.Helper()
	if a.id == "" {
		a.id = newID()
	}
	if a.ttl == 0 {
		a.ttl = 30 * time.Second
	}
	var us int64
	err := c.conn.QueryRow(c.t.Context(), acquireOne, a.name, a.id, a.label, a.ttl.Microseconds(), a.hold.Microseconds(), a.meta, a.seen, a.kind, a.client, a.delay.Microseconds()).
		Scan(&got.status, &got.token, &got.owner, &got.since, &us, &got.slot)
	if err != nil {
		c.t.Errorf("acquire %q: %v", a.name, err)
	}
	got.remaining = time.Duration(us) * time.Microsecond
	return got
}

// A grant is what its holder knows of it.
type grant struct {
	name, id string
	token    int64
	slot     int
}

// take acquires what is free.
func (c *caller) take(name string) grant {
	c.t.Helper()
	return c.takeWith(ask{name: name})
}

func (c *caller) takeWith(a ask) grant {
	c.t.Helper()
	a.id = newID()
	got := c.acquire(a)
	if got.status != "granted" || got.token == 0 {
		c.t.Errorf("acquire %q: %+v, want granted", a.name, got)
	}
	return grant{a.name, a.id, got.token, got.slot}
}

// try is the status of one more attempt.
func (c *caller) try(name string) string {
	c.t.Helper()
	return c.acquire(ask{name: name}).status
}

// again sends the acquisition of a grant once more, as after a lost reply.
func (c *caller) again(g grant) answer {
	c.t.Helper()
	return c.acquire(ask{name: g.name, id: g.id})
}

func (c *caller) renew(g grant) string {
	c.t.Helper()
	return one[string](c, `SELECT status FROM pglock.renew(ARRAY[$1::text], ARRAY[$2::uuid], ARRAY[$3::bigint], ARRAY[$4::int])`,
		g.name, g.id, g.token, g.slot)
}

func (c *caller) release(g grant) string {
	c.t.Helper()
	return one[string](c, `SELECT status FROM pglock.release(ARRAY[$1::text], ARRAY[$2::uuid], slots => ARRAY[$3::int])`, g.name, g.id, g.slot)
}

// want checks a status.
func want[T comparable](t *testing.T, what string, got, wanted T) {
	t.Helper()
	if got != wanted {
		t.Errorf("%s: %v, want %v", what, got, wanted)
	}
}

// row is all that is stored of a lock.
func (c *caller) row(name string) string {
	c.t.Helper()
	return one[string](c, `SELECT l::text FROM pglock.leases l WHERE name = $1`, name)
}

// lock locks a row in a transaction of its own, until the function that it returns ends that.
func lock(t *testing.T, db *pgtest.Database, name, strength string) (unlock func()) {
	t.Helper()
	c := newCaller(t, db)
	c.exec(`BEGIN`)
	c.exec(`SELECT FROM pglock.leases WHERE name = $1 FOR `+strength, name)
	return func() { c.exec(`ROLLBACK`) }
}

// endHold lets the time of a hold pass, instead of waiting.
func (c *caller) endHold() {
	c.t.Helper()
	c.exec(`UPDATE pglock.guard SET no_grants_before = clock_timestamp()`)
}
