package migrations_test

import (
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// commitAfter is the synchronous_commit that a transaction commits with after a verb, in a session with another.
func (c *caller) commitAfter(session string, verbs ...func()) string {
	c.t.Helper()
	c.exec(`SELECT set_config('synchronous_commit', $1, false)`, session)
	c.exec(`BEGIN`)
	for _, verb := range verbs {
		verb()
	}
	got := one[string](c, `SHOW synchronous_commit`)
	c.exec(`COMMIT`)
	want(c.t, "synchronous_commit of the session afterwards", one[string](c, `SHOW synchronous_commit`), session)
	return got
}

// A grant survives a crash even in a session that does not care. What is stronger is left as it is. A renewal waits for no
// standby.
func TestGrantsAndRenewalsAreDurable(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	for session, wanted := range map[string]string{"off": "local", "local": "local", "on": "on", "remote_write": "remote_write", "remote_apply": "remote_apply"} {
		want(t, "grant under "+session, c.commitAfter(session, func() { c.take(session) }), wanted)
		held := c.take("held " + session)
		want(t, "renewal under "+session, c.commitAfter(session, func() { want(t, "renew", c.renew(held), "renewed") }), "local")
		want(t, "release under "+session, c.commitAfter(session, func() { want(t, "release", c.release(held), "released") }), session)
	}
	want(t, "check-in under off", c.commitAfter("off", func() { c.exec(`SELECT pglock.check_in(0)`) }), "local")
}

// A release may be left to the next flush, but only a release alone.
func TestDeferredReleaseDefersNothingElse(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	db.Exec(t, `CREATE TABLE other (n int)`)
	held := c.take("held")
	deferred := func() {
		c.t.Helper()
		g := grant{name: "a", id: newID()}
		db.Exec(t, `INSERT INTO pglock.leases (name, acquisition, expires_at) VALUES ('a', $1, clock_timestamp() + interval '1 min')
			ON CONFLICT (name, slot) DO UPDATE SET acquisition = excluded.acquisition, expires_at = excluded.expires_at`, g.id)
		want(t, "release", one[string](c, `SELECT status FROM pglock.release(ARRAY['a'], ARRAY[$1::uuid], true)`, g.id), "released")
	}
	write := func() { c.exec(`INSERT INTO other VALUES (1)`) }
	grant := func() { c.take(newID()) }
	renew := func() { want(t, "renew", c.renew(held), "renewed") }
	want(t, "alone", c.commitAfter("on", deferred), "off")
	want(t, "after a write", c.commitAfter("on", write, deferred), "on")
	want(t, "after a grant", c.commitAfter("on", grant, deferred), "on")
	want(t, "after a renewal", c.commitAfter("on", renew, deferred), "local")
	want(t, "before a grant", c.commitAfter("on", deferred, grant), "local")
	want(t, "before a renewal", c.commitAfter("on", deferred, renew), "local")
}

// The whole promise, with a crash. The WAL writer is kept from flushing what nobody waits for.
func TestGrantSurvivesACrashUnderAsynchronousCommit(t *testing.T) {
	t.Parallel()
	server, db := pgtest.OwnServer(t, pgtemp.Options{Settings: map[string]string{"wal_writer_delay": "10s"}})
	c := newCaller(t, db)
	c.exec(`SET synchronous_commit = off; CREATE TABLE other (n int)`)
	g := c.takeWith(ask{name: "a", ttl: 30 * time.Second})
	c.exec(`INSERT INTO other VALUES (1)`)
	if err := server.Restart(t.Context(), pgtemp.Immediate); err != nil {
		t.Fatal(err)
	}
	c = newCaller(t, db)
	want(t, "rows that nobody waited for", one[int](c, `SELECT count(*) FROM other`), 0) // else the crash shows nothing
	want(t, "renewal", c.renew(g), "renewed")
}
