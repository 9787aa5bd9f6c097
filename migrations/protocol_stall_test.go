package migrations_test

import (
	"strings"
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// A call can be held up in the middle of a statement, when it has its snapshot and not yet the row: a hook is edited into the
// text of the function that is tested, and waits for an advisory lock, once for each session that asks for it.
const hook = `
CREATE OR REPLACE FUNCTION public.stall() RETURNS boolean LANGUAGE plpgsql SET lock_timeout = 0 AS $$
BEGIN
  IF current_setting('test.stall', true) = 'on' THEN
    PERFORM set_config('test.stall', 'off', false);
    PERFORM pg_advisory_xact_lock(1);
  END IF;
  RETURN true;
END $$`

// The places.
var (
	beforeGrantLock   = place{"pglock.acquire", "FOR UPDATE SKIP LOCKED) free", "AND public.stall() FOR UPDATE SKIP LOCKED) free"}
	beforeBatchLock   = place{"pglock.acquire", "FOR UPDATE SKIP LOCKED) x", "AND public.stall() FOR UPDATE SKIP LOCKED) x"}
	beforeFetch       = place{"pglock.acquire", "IF heirs IS NOT NULL", "PERFORM public.stall(); IF heirs IS NOT NULL"}
	beforeRenewLock   = place{"pglock.renew", "FOR NO KEY UPDATE SKIP LOCKED", "AND public.stall() FOR NO KEY UPDATE SKIP LOCKED"}
	beforeReleaseLock = place{"pglock.release", "FOR NO KEY UPDATE SKIP LOCKED) mine", "AND public.stall() FOR NO KEY UPDATE SKIP LOCKED) mine"}
	beforeBatchEnd    = place{"pglock.release", "FOR NO KEY UPDATE SKIP LOCKED) x", "AND public.stall() FOR NO KEY UPDATE SKIP LOCKED) x"}
	beforeClaimLock   = place{"pglock.claim", "IF kind <> 0 AND was = kind THEN", "PERFORM public.stall(); IF kind <> 0 AND was = kind THEN"}
	beforePruneLock   = place{"pglock.prune", "LIMIT most FOR UPDATE SKIP LOCKED) x;", "AND public.stall() LIMIT most FOR UPDATE SKIP LOCKED) x;"}
	beforePlant       = place{"pglock.plant", "BEGIN", "BEGIN PERFORM public.stall();"}
	beforeInsert      = place{"pglock.plant", "INSERT INTO", "PERFORM public.stall(); INSERT INTO"}
	beforeSetval      = place{"pglock.move_token", "RETURN setval", "PERFORM public.stall(); RETURN setval"}
)

// A place is where in a function the hook goes.
type place struct{ function, text, with string }

// hookInto edits the hook into a function.
func hookInto(t *testing.T, db *pgtest.Database, p place) {
	t.Helper()
	db.Exec(t, hook)
	text := pgtest.Query[string](t, db, `SELECT pg_get_functiondef($1::text::regproc)`, p.function)
	if strings.Count(text, p.text) != 1 {
		t.Fatalf("%q is not once in %s", p.text, p.function)
	}
	db.Exec(t, strings.Replace(text, p.text, p.with, 1))
}

// stalled starts a call and returns when it is held up at the hook. The function that it returns lets the call go on, and
// returns its answer.
func stalled[T any](t *testing.T, db *pgtest.Database, c *caller, call func() T) (resume func() T) {
	t.Helper()
	gate := newCaller(t, db)
	gate.exec(`SELECT pg_advisory_lock(1)`)
	c.exec(`SET test.stall = 'on'`)
	done := make(chan T, 1)
	go func() { done <- call() }()
	db.WaitFor(t, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 1 AND NOT granted AND pid = $1)`,
		c.conn.PgConn().PID())
	return func() T {
		gate.exec(`SELECT pg_advisory_unlock(1)`)
		return <-done
	}
}
