package advisory

// One text for each function, space and mode, so that a driver which prepares statements prepares few.

// call is a call of one of PostgreSQL's lock functions for a request. Its parameters are those of args.
func (r request) call(function string) string {
	if r.shared {
		function += "_shared"
	}
	if r.key.space == twoNumbers {
		return "pg_catalog." + function + "($1::int, $2::int)"
	}
	return "pg_catalog." + function + "($1::bigint)"
}

func (r request) args() []any {
	if a, b, ok := r.key.Int32s(); ok {
		return []any{a, b}
	}
	return []any{r.key.bits}
}

// try is the statement that asks once, and returns at once. NULL: a standby, which is not asked.
func (r request) try(function string) string {
	return "SELECT CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN " + r.call(function) + " END"
}

// identitySQL is answered by the session that the start-up parameters went to, and by no other: see session.
const identitySQL = `SELECT pg_catalog.pg_backend_pid(), coalesce(pg_catalog.current_setting('` + marker + `', true), '')`

// entriesSQL lists the advisory locks of this database, as JSON, so that every driver reads it in the same way. A role
// without pg_read_all_stats sees neither address nor age of other roles' sessions.
const entriesSQL = `SELECT coalesce(pg_catalog.json_agg(pg_catalog.json_build_object(
    'classid', l.classid::bigint, 'objid', l.objid::bigint, 'objsubid', l.objsubid, 'pid', coalesce(l.pid, 0),
    'shared', l.mode OPERATOR(pg_catalog.=) 'ShareLock', 'waits', NOT l.granted,
    'application', coalesce(a.application_name, ''), 'client', coalesce(pg_catalog.host(a.client_addr), ''),
    'age', coalesce(extract(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) coalesce(l.waitstart, a.backend_start)), 0)
  ) ORDER BY l.objsubid, l.classid, l.objid, l.granted DESC, l.pid), '[]')::text
FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) l.pid
WHERE l.locktype OPERATOR(pg_catalog.=) 'advisory'
  AND l.database OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())`

// holdersSQL is entriesSQL for those who hold one key.
const holdersSQL = entriesSQL + ` AND l.granted AND l.classid::bigint OPERATOR(pg_catalog.=) $1::bigint
  AND l.objid::bigint OPERATOR(pg_catalog.=) $2::bigint AND l.objsubid::bigint OPERATOR(pg_catalog.=) $3::bigint`

// blockersSQL says whom each of the waiting sessions waits for.
const blockersSQL = `SELECT coalesce(pg_catalog.json_object_agg(w.pid, pg_catalog.to_json(pg_catalog.pg_blocking_pids(w.pid))), '{}')::text
FROM (SELECT DISTINCT l.pid FROM pg_catalog.pg_locks l
  WHERE l.locktype OPERATOR(pg_catalog.=) 'advisory' AND NOT l.granted) w`
