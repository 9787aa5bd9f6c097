package migrations_test

import (
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// holdOf makes the guard as the statements say, lets an acquisition find out, and answers where the hold ends: "start", one
// cap after the start of the server, "stop", after it was shut down before that, or "now".
func holdOf(c *caller, sql ...string) string {
	c.t.Helper()
	c.endHold()
	for _, s := range sql {
		c.exec(s)
	}
	clock := one[time.Time](c, `SELECT clock_timestamp()`)
	want(c.t, "acquire", c.try("a"), "held_back") // even when the hold is over: never with the bump
	return one[string](c, `SELECT CASE WHEN no_grants_before = pg_postmaster_start_time() + cap_us * interval '1 us' THEN 'start'
		WHEN no_grants_before = (SELECT checkpoint_time + interval '1 s' FROM pg_control_checkpoint()) + cap_us * interval '1 us' THEN 'stop'
		WHEN no_grants_before BETWEEN $1::timestamptz + cap_us * interval '1 us' AND clock_timestamp() + cap_us * interval '1 us' THEN 'now'
		ELSE no_grants_before::text END FROM pglock.guard`, clock)
}

// reason is why grants are held back, as a caller is told.
func reason(c *caller) string {
	c.t.Helper()
	got := c.acquire(ask{name: "a"})
	want(c.t, "acquire", got.status, "held_back")
	want(c.t, "the reason on a new connection", one[string](c, `SELECT reason FROM pglock.check_in(0)`), got.owner)
	return got.owner
}

// Where nothing else can have granted meanwhile, the hold counts from the start of the server: only when it is declared so,
// and nothing but the start differs. What the server does not say, differs.
func TestOnlyAPlainRestartOfASingleNodeIsShort(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	want(t, "a restart, not declared", holdOf(c, otherServer), "now")

	c.exec(`UPDATE pglock.guard SET single_node = true, cap_us = 86400000000`) // so that the server has started within the cap
	want(t, "a restart", holdOf(c, otherServer), "start")
	want(t, "the reason", reason(c), "the server was restarted")
	const copied, unclear = "this database is a copy of the one that granted last", "the server was restarted, or another has taken over"
	const other = "another server granted last: a failover, or a copy that was restored"
	for what, is := range map[string]struct{ sql, reason string }{
		"another database":     {`UPDATE pglock.guard SET database = 1`, copied},
		"another table":        {`UPDATE pglock.guard SET leases = 1`, copied},
		"another system":       {otherServer + `, system_identifier = 1`, other},
		"another timeline":     {otherServer + `, timeline = '0000000F'`, other},
		"a system not known":   {otherServer + `, system_identifier = NULL`, other},
		"a timeline not known": {otherServer + `, timeline = NULL`, other},
	} {
		want(t, what, holdOf(c, is.sql), "now")
		want(t, "the reason of "+what, reason(c), is.reason)
	}
	c.exec(`ALTER FUNCTION pglock.lineage RENAME TO lineage_of_a_server_that_says_it`) // as of one that does not say it
	c.exec(`CREATE FUNCTION pglock.lineage(OUT system_identifier bigint, OUT timeline text, OUT checkpointed timestamptz) LANGUAGE sql AS
		'SELECT NULL::bigint, NULL::text, NULL::timestamptz'`)
	want(t, "a server that says nothing", holdOf(c, otherServer), "now")
	want(t, "the reason of a server that says nothing", reason(c), unclear)
	c.exec(`DROP FUNCTION pglock.lineage; ALTER FUNCTION pglock.lineage_of_a_server_that_says_it RENAME TO lineage`)
	c.exec(otherServer)
	want(t, "acquire", c.try("a"), "held_back")
	c.endHold()
	want(t, "identity", one[bool](c, `SELECT started = pg_postmaster_start_time() AND database = d.oid AND leases = 'pglock.leases'::regclass
		AND g.system_identifier = s.system_identifier AND timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8)
		FROM pglock.guard g, pg_database d, pg_control_system() s WHERE datname = current_database()`), true)

	seen := c.lastToken() + 3_600_000_000
	want(t, "acquire with a later token", c.acquire(ask{name: "a", seen: seen}).status, "held_back")
	want(t, "the reason", reason(c), "a client has seen a later token than this database has drawn: its last grants were lost")
	want(t, "a lost tail that a caller has seen", one[bool](c, `SELECT no_grants_before > clock_timestamp() + interval '23 h' FROM pglock.guard
		WHERE no_grants_before <> pg_postmaster_start_time() + cap_us * interval '1 us'`), true)
}

// The grant comes with a later call than the bump, even where the hold is over by then.
func TestBumpNeverGrants(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	c.exec(`UPDATE pglock.guard SET single_node = true, cap_us = 100000`)
	c.exec(`UPDATE pglock.guard SET started = 'epoch'`)
	db.WaitFor(t, `SELECT pg_postmaster_start_time() + interval '100 ms' <= clock_timestamp()`)
	got := c.acquire(ask{name: "a", ttl: 100 * time.Millisecond})
	if got.status != "held_back" || got.remaining != 0 {
		t.Errorf("%+v, want held_back for no time", got)
	}
	c.takeWith(ask{name: "a", ttl: 100 * time.Millisecond})
}

// A hold that is longer than what a bump asks for is not made shorter.
func TestBumpNeverShortensAHold(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	db.Exec(t, `UPDATE pglock.guard SET started = 'epoch', no_grants_before = clock_timestamp() + interval '1 hour'`)
	if got := c.acquire(ask{name: "a"}); got.status != "held_back" || got.remaining < 50*time.Minute {
		t.Errorf("%+v, want held_back for an hour", got)
	}
}

// An owner who knows that no grant was lost ends the hold.
func TestOwnerEndsAHold(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	db.Exec(t, otherServer)
	want(t, "acquire", c.try("a"), "held_back")
	c.exec(`SELECT pglock.end_hold()`)
	c.take("a")
}

// Also one who is quicker than all clients: the hold that the switch-over calls for has not begun yet.
func TestOwnerEndsAHoldBeforeItBegins(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	before := c.take("a").token
	db.Exec(t, otherServer)
	clock := c.clockToken()
	c.exec(`SELECT pglock.end_hold()`)
	if g := c.take("b"); g.token <= max(before, clock) {
		t.Errorf("token %d, want above %d: the tokens of the other server may be as late as the clock", g.token, max(before, clock))
	}
}

// A copy of the database, in the same server or restored in another, is not the original.
func TestCopyOfADatabaseHoldsGrantsBack(t *testing.T) {
	t.Parallel()
	db := pgtest.Copy(t)
	c := newCaller(t, db)
	c.exec(`UPDATE pglock.guard SET single_node = true`)
	clock := c.clockToken()
	got := c.acquire(ask{name: "a"})
	if got.status != "held_back" || got.remaining <= 0 {
		t.Errorf("%+v, want held_back", got)
	}
	want(t, "the original's restart is not what this is", one[bool](c, `SELECT no_grants_before > pg_postmaster_start_time() + interval '30 s' FROM pglock.guard`), true)
	c.endHold()
	if g := c.take("a"); g.token <= clock {
		t.Errorf("token %d, want above the clock of %d: the original has gone on", g.token, clock)
	}
}

// The matching is by acquisition and token together: a number that was drawn twice, or an owner that came back, renews nobody
// else's lease.
func TestLostGrantDoesNotRenewAnothers(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	lost := c.takeWith(ask{name: "a", label: "w"})
	db.Exec(t, `DELETE FROM pglock.leases`) // the failover loses it, and the sequence with it
	db.Exec(t, `SELECT setval('pglock.fencing_token', $1, false)`, lost.token)
	next := c.takeWith(ask{name: "a", label: "w"})
	want(t, "the token", next.token, lost.token)
	before := c.row("a")
	want(t, "renewal of the lost grant", c.renew(lost), "taken")
	want(t, "its release", c.release(lost), "gone")
	want(t, "the row", c.row("a"), before)
}
