package pglock

import (
	"strings"

	"github.com/jackc/pgx/v5"
)

// The protocol lives in the database's functions; these are the calls. Parameters are cast, and instants and durations come in
// microseconds, so that they mean the same with and without prepared statements, and under any DateStyle. Operators have their schema, as
// functions do: search_path may begin with somebody else's.
const (
	acquireSQL = `SELECT ord, status, coalesce(token, 0), coalesce(owner, ''), coalesce((extract(epoch FROM since) OPERATOR(pg_catalog.*) 1000000)::bigint, 0),
  coalesce(remaining_us, 0), coalesce(slot, 0)
FROM pglock.acquire($1::text[], $2::uuid[], $3::text, $4::bigint[], $5::bigint[], $6::text[], $7::bigint, $8::bigint[], $9::int[], $10::int[], $11::uuid, $12::bigint[], $13::boolean[])`

	renewSQL = `SELECT ord, status FROM pglock.renew($1::text[], $2::uuid[], $3::bigint[], $4::int[])`

	releaseSQL = `SELECT ord, status FROM pglock.release($1::text[], $2::uuid[], $3::boolean, $4::boolean[], true, $5::int[])`

	// A batch with both kinds is one statement: it hands a lock over within the process.
	exchangeSQL = `SELECT ord, status, coalesce(token, 0), coalesce(owner, ''), coalesce((extract(epoch FROM since) OPERATOR(pg_catalog.*) 1000000)::bigint, 0),
  coalesce(remaining_us, 0), coalesce(slot, 0), ended, awaited
FROM pglock.exchange($1::text[], $2::uuid[], $3::boolean[], $4::int[], $5::text[], $6::uuid[], $7::text, $8::bigint[], $9::bigint[], $10::text[], $11::bigint, $12::bigint[],
  $13::int[], $14::int[], $15::uuid, $16::bigint[], $17::boolean[])`

	markSQL = `SELECT ord, status, coalesce(token, 0), coalesce(owner, ''), coalesce((extract(epoch FROM since) OPERATOR(pg_catalog.*) 1000000)::bigint, 0),
  coalesce(remaining_us, 0)
FROM pglock.mark($1::text[], $2::uuid, $3::bigint[], $4::boolean[], $5::int[], $6::uuid[], $7::text, $8::bigint[])`

	unmarkSQL = `SELECT ord, pending FROM pglock.unmark($1::text[], $2::uuid, $3::bigint[], $4::uuid[])`

	checkInSQL = `SELECT c.cap_us, c.hold_us, c.reason, c.isolation, c.statement_timeout, pg_catalog.pg_backend_pid(),
  coalesce((SELECT (extract(epoch FROM backend_start) OPERATOR(pg_catalog.*) 1000000)::bigint FROM pg_catalog.pg_stat_activity
    WHERE pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid()), 0) FROM pglock.check_in($1::bigint) c`

	inspectSQL = `SELECT name, slot, held, owner, token, (extract(epoch FROM granted_at) OPERATOR(pg_catalog.*) 1000000)::bigint, (extract(epoch FROM ttl) OPERATOR(pg_catalog.*) 1000000)::bigint,
  (extract(epoch FROM remaining) OPERATOR(pg_catalog.*) 1000000)::bigint, (extract(epoch FROM free_in) OPERATOR(pg_catalog.*) 1000000)::bigint, metadata
FROM pglock.inspect`

	holderSQL = `SELECT held, coalesce(owner, ''), coalesce(token, 0), coalesce((extract(epoch FROM since) OPERATOR(pg_catalog.*) 1000000)::bigint, 0),
  coalesce((extract(epoch FROM remaining) OPERATOR(pg_catalog.*) 1000000)::bigint, 0)
FROM pglock.holder($1::text)`

	revokeSQL = `SELECT status, coalesce(token, 0), coalesce(owner, ''), coalesce((extract(epoch FROM since) OPERATOR(pg_catalog.*) 1000000)::bigint, 0),
  coalesce(remaining_us, 0) FROM pglock.revoke($1::text, $2::uuid, $3::text, $4::bigint, $5::boolean, $6::bigint)`

	raiseFloorSQL = `SELECT pglock.raise_token_floor($1::bigint)`
	raiseCapSQL   = `SELECT pglock.raise_cap($1::bigint)`
	singleNodeSQL = `SELECT true FROM pglock.declare_single_node($1::boolean)`
	endHoldSQL    = `SELECT true FROM pglock.end_hold()`

	pruneSQL       = `SELECT pglock.prune($1::bigint OPERATOR(pg_catalog.*) interval '1 us', $2::int)`
	pruneFencesSQL = `SELECT pglock.prune_fences($1::bigint OPERATOR(pg_catalog.*) interval '1 us', $2::int)`
)

// Not of the lock schema: a connection that was given up may still be at work, so its successor ends it first. The start time
// tells it from a later process with the same number.
const endBackendSQL = `SELECT pg_catalog.pg_terminate_backend(pid, 1000) FROM pg_catalog.pg_stat_activity WHERE pid OPERATOR(pg_catalog.=) $1::int
  AND (extract(epoch FROM backend_start) OPERATOR(pg_catalog.*) 1000000)::bigint OPERATOR(pg_catalog.=) $2::bigint`

// behindSQL names the standbys that have not replayed the log up to $1. An empty name stands for those that this role may not
// see. A backup that is being taken replays nothing.
const behindSQL = `SELECT coalesce(nullif(application_name, ''), pid::text) FROM pg_catalog.pg_stat_replication
  WHERE state IS NOT NULL AND state OPERATOR(pg_catalog.<>) 'backup' AND (replay_lsn OPERATOR(pg_catalog.>=) $1::text::pg_catalog.pg_lsn) IS NOT TRUE
UNION ALL SELECT '' FROM pg_catalog.pg_stat_replication WHERE state IS NULL ORDER BY 1`

// What shows a client that its listener hears. It need not wait for the disk.
const proveSQL = `SELECT pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.pg_notify($1::text, $2::text)`

// Where the session is not ours, as behind a pooler, each transaction says what it needs.
var (
	pinIsolation = statement{sql: `SET TRANSACTION ISOLATION LEVEL READ COMMITTED READ WRITE`}
	pinTimeouts  = statement{
		sql: `SELECT pg_catalog.set_config('statement_timeout', $1::text, true), pg_catalog.set_config('lock_timeout', $2::text, true),
  pg_catalog.set_config('client_min_messages', $3::text, true)`,
		args: []any{milliseconds(statementTimeout), milliseconds(lockTimeout), messages},
	}
)

// in puts a statement into the schema of this client.
func (c *Client) in(sql string) string {
	return strings.ReplaceAll(sql, "pglock.", pgx.Identifier{c.cfg.Schema}.Sanitize()+".")
}
