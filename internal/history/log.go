package history

import (
	"fmt"
	"strings"
	"time"
)

// logSQL makes the log beside the lease table. It is for tests: every change of a lease row costs a second row.
//
// A hand-over is one write, in which the log cannot see that the grant before it was over. So the call that asks for it, which
// only the holder can make, is recorded by itself: exchange is replaced by a function that does that, and calls it.
//
// The trigger runs in the transaction of the change, so the log holds what was committed and nothing else, whoever made
// the change: a function of the protocol, psql, or a clean-up. It is SECURITY DEFINER with a pinned search_path, as are
// the functions of the protocol, and ENABLE ALWAYS, so that session_replication_role does not blind it.
const logSQL = `
CREATE TABLE {schema}.lease_history (
  serial      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  removed     boolean NOT NULL,
  name        text COLLATE "C" NOT NULL,
  slot        int NOT NULL,
  token       bigint NOT NULL,
  acquisition uuid,
  owner       text,
  granted_at  timestamptz NOT NULL,
  expires_at  timestamptz NOT NULL,
  not_before  timestamptz NOT NULL,
  delay       interval NOT NULL,
  permits     int NOT NULL,
  recorded_at timestamptz NOT NULL
);

CREATE FUNCTION {schema}.record_lease_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $history$
DECLARE
  l {schema}.leases;
BEGIN
  IF TG_OP = 'TRUNCATE' THEN -- no row trigger fires: every row is removed by this statement
    INSERT INTO {schema}.lease_history
        (removed, name, slot, token, acquisition, owner, granted_at, expires_at, not_before, delay, permits, recorded_at)
      SELECT true, x.name, x.slot, x.token, x.acquisition, x.owner, x.granted_at, x.expires_at, x.not_before, x.delay, x.permits,
             clock_timestamp()
        FROM {schema}.leases x;
    RETURN NULL;
  END IF;
  IF TG_OP = 'DELETE' THEN
    l := OLD;
  ELSE
    l := NEW;
  END IF;
  INSERT INTO {schema}.lease_history
      (removed, name, slot, token, acquisition, owner, granted_at, expires_at, not_before, delay, permits, recorded_at)
    VALUES (TG_OP = 'DELETE', l.name, l.slot, l.token, l.acquisition, l.owner, l.granted_at, l.expires_at,
            l.not_before, l.delay, l.permits, clock_timestamp());
  RETURN NULL;
END
$history$;

CREATE TRIGGER record_lease_change AFTER INSERT OR UPDATE OR DELETE ON {schema}.leases
  FOR EACH ROW EXECUTE FUNCTION {schema}.record_lease_change();
CREATE TRIGGER record_lease_truncate BEFORE TRUNCATE ON {schema}.leases
  FOR EACH STATEMENT EXECUTE FUNCTION {schema}.record_lease_change();
ALTER TABLE {schema}.leases ENABLE ALWAYS TRIGGER record_lease_change;
ALTER TABLE {schema}.leases ENABLE ALWAYS TRIGGER record_lease_truncate;

CREATE TABLE {schema}.lease_hand_overs (name text COLLATE "C" NOT NULL, slot int NOT NULL, given uuid, taken uuid);
CREATE SCHEMA unrecorded;
ALTER FUNCTION {schema}.exchange SET SCHEMA unrecorded; -- not another name, by which its text says what it means
DO $history$
DECLARE
  f pg_catalog.pg_proc := p FROM pg_catalog.pg_proc p WHERE p.oid = 'unrecorded.exchange'::regproc;
BEGIN
  EXECUTE format('CREATE FUNCTION {schema}.exchange(%s) RETURNS %s LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS %L',
    pg_get_function_arguments(f.oid), pg_get_function_result(f.oid), format('BEGIN
  INSERT INTO {schema}.lease_hand_overs SELECT e.name, coalesce(e.place, 0), e.given, r.taken
    FROM unnest(ended_names, ended_acquisitions, ended_slots) AS e(name, given, place) JOIN unnest(names, acquisitions) AS r(name, taken) USING (name);
  RETURN QUERY SELECT * FROM unrecorded.exchange(%s);
END', (SELECT string_agg('$' || n, ', ') FROM generate_series(1, f.pronargs) n)));
END
$history$;
`

// selectLogSQL gives instants as microseconds, exactly: no driver and no time zone comes between.
const selectLogSQL = `
SELECT serial, removed, name, slot, token, coalesce(acquisition::text, ''), coalesce(owner, ''),
       (extract(epoch FROM granted_at) * 1000000)::bigint,
       (extract(epoch FROM expires_at) * 1000000)::bigint,
       (extract(epoch FROM not_before) * 1000000)::bigint,
       (extract(epoch FROM delay) * 1000000)::bigint, permits,
       (extract(epoch FROM recorded_at) * 1000000)::bigint
  FROM {schema}.lease_history
 ORDER BY serial`

const selectHandOversSQL = `SELECT name, slot, coalesce(given::text, ''), coalesce(taken::text, '') FROM {schema}.lease_hand_overs`

// InstallLog returns the statements that begin the log of the lease table in a schema, given as a quoted identifier.
// Run them as the owner of the table, before the first grant: the log does not know what was there before it.
func InstallLog(quotedSchema string) string {
	return strings.ReplaceAll(logSQL, "{schema}", quotedSchema)
}

// SelectLog returns the query whose rows ReadLog reads.
func SelectLog(quotedSchema string) string {
	return strings.ReplaceAll(selectLogSQL, "{schema}", quotedSchema)
}

// SelectHandOvers returns the query whose rows ReadHandOvers reads.
func SelectHandOvers(quotedSchema string) string {
	return strings.ReplaceAll(selectHandOversSQL, "{schema}", quotedSchema)
}

// Rows is what ReadLog and ReadHandOvers need of pgx.Rows or *sql.Rows.
type Rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
}

// ReadLog reads the rows of [SelectLog] to their end. Closing them is the caller's.
func ReadLog(rows Rows) ([]Change, error) {
	var changes []Change
	for rows.Next() {
		var c Change
		var granted, expires, notBefore, delay, recorded int64
		if err := rows.Scan(&c.Serial, &c.Removed, &c.Lock, &c.Slot, &c.Token, &c.Acquisition, &c.Owner,
			&granted, &expires, &notBefore, &delay, &c.Permits, &recorded); err != nil {
			return nil, fmt.Errorf("history: read the log after serial %d: %w", lastSerial(changes), err)
		}
		c.GrantedAt, c.ExpiresAt = Instant(granted), Instant(expires)
		c.NotBefore, c.RecordedAt = Instant(notBefore), Instant(recorded)
		c.Delay = time.Duration(delay) * time.Microsecond
		changes = append(changes, c)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("history: read the log after serial %d: %w", lastSerial(changes), err)
	}
	return changes, nil
}

// ReadHandOvers reads the rows of [SelectHandOvers] to their end. Closing them is the caller's.
func ReadHandOvers(rows Rows) ([]HandOver, error) {
	var all []HandOver
	for rows.Next() {
		var h HandOver
		if err := rows.Scan(&h.Lock, &h.Slot, &h.From, &h.To); err != nil {
			return nil, fmt.Errorf("history: read the hand-overs after the first %d: %w", len(all), err)
		}
		all = append(all, h)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("history: read the hand-overs after the first %d: %w", len(all), err)
	}
	return all, nil
}

func lastSerial(changes []Change) int64 {
	if len(changes) == 0 {
		return 0
	}
	return changes[len(changes)-1].Serial
}
