// Command break removes one rule of the locks, the fences, the guard or the records of jobs at a time and shows that a test fails for each: go run .ci/break.go
//
// It works on a copy of the tree. With arguments it breaks only the rules whose names have one of them; with -n it only looks for
// their texts. It exits with 1 if a rule can be removed without any test noticing, and with 2 if one cannot be found any more.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A rule is a text that stands once in a file, and what is there instead once it is broken.
type rule struct {
	name, file, text, instead string
	pkg, run                  string // where a test must fail
}

const (
	leases    = "migrations/0001_leases.up.sql"
	sqlFile   = "migrations/0002_fences.up.sql"
	protect   = "migrations/0003_protect.up.sql"
	onceFile  = "migrations/0006_once.up.sql"
	waiting   = "migrations/0004_waiting.up.sql"
	kinds     = "migrations/0005_kinds.up.sql"
	statement = "fence/statement.go"
	fences    = "./fence"
	protocol  = "./migrations"
	locks     = "./pglock"
	failovers = "./internal/failover"
	runners   = "./pglock/once"
)

var rules = []rule{
	{"update: the predicate", statement, "FROM _k\n  WHERE {match} AND {each once} RETURNING", "FROM _k\n  WHERE {match} RETURNING", fences, "SeveralRows"},
	{"update: the row's lock", statement, "(SELECT ok FROM _c) {by t.key} FOR NO KEY UPDATE OF t", "(SELECT ok FROM _c) {by t.key}", fences, "Waited|NoOrder"},
	{"update: all or none", statement, `(SELECT count(*) = "+count+" AND count(DISTINCT n) = "+count+" AND bool_and(last "+older+" $1::bigint) FROM _r)`, `(SELECT bool_or(last "+older+" $1::bigint) FROM _r)`, fences, "SeveralRows"},
	{"update: what came to be stored", statement, "{is whole}) IS NOT TRUE THEN false\n    WHEN {meant} = {stored} THEN true ELSE", "{is whole}) IS NOT TRUE THEN false\n    WHEN true THEN true ELSE", fences, "TriggerThatChanges"},
	{"update of one row: the predicate", statement, "WHERE {match} AND coalesce(t.{token}, 0) {older} $1::bigint AND (t", "WHERE {match} AND (t", fences, "Verbs"},
	{"update of one row: a token that was granted", statement, "AND (t.{token} = $1::bigint OR (SELECT {pglock}.fence_credible({grant})))", "", fences, "NeverGranted|MadeUp|Credible|Token"},
	{"update of one row: it is one", statement, "THEN (SELECT count(*) FROM {table} AS t WHERE {match}) = 1\n", "THEN true\n", fences, "Unique|OneKey|Verbs|Rows"},
	{"update of one row: what rules are on is locked before", statement, "{match} FOR NO KEY UPDATE OF t) AS _r) END", "{match}) AS _r) END", fences, "View"},
	{"update of one row: the key as its columns hash it", statement, "THEN (SELECT {pglock}.fence_row_tombstone({rel}, ROW({k.key})) FROM _k) ELSE", "THEN {pglock}.fence_row_tombstone({rel}, ROW($3)) ELSE", fences, "KeyTypes"},
	{"update of one row: its token came to suffice meanwhile", statement, "ELSE x.rows = 1 AND x.last {older} $1::bigint END{_w.returned}", "ELSE false END{_w.returned}", fences, "Suffice"},
	{"update of one row: what came to be stored", statement, "_w.n IS NULL THEN false\n    WHEN {meant} = {stored} THEN true ELSE", "_w.n IS NULL THEN false\n    WHEN true THEN true ELSE", fences, "TriggerThatChanges"},
	{"update of one row: the look is under its lock", statement, "AND _w.n IS NULL FOR NO KEY UPDATE OF t) AS _r", "AND _w.n IS NULL) AS _r", fences, "Waited|NoOrder"},
	{"insert: what came to be stored", statement, "\n    WHEN _w.last IS DISTINCT FROM $1::bigint THEN {pglock}.fence_kept({meant}, {stored})\n    WHEN _g", "\n    WHEN _g", fences, "TriggerThatChanges"},
	{"delete: the predicate", statement, "USING _k WHERE {match} AND {each once}", "USING _k WHERE {match}", fences, "Verbs"},
	{"delete: the row's lock", statement, "FROM _g) {by t.key} FOR UPDATE OF t),\n_w ({w returned}n)", "FROM _g) {by t.key}),\n_w ({w returned}n)", fences, "Waited|NoOrder|ReplacedMeanwhile"},
	{"delete: the tombstone", statement, "THEN {pglock}.fence_row_bury({rel}, ROW({k.key}), {grant}) ELSE false END,\n  _g.n", "THEN true ELSE false END,\n  _g.n", fences, "Verbs"},
	{"insert: the tombstone counts", statement, "WHERE {keys free} AND NOT EXISTS (SELECT FROM _r WHERE", "WHERE NOT EXISTS (SELECT FROM _r WHERE", fences, "Verbs"},
	{"upsert: the predicate at a conflict", statement, " WHERE coalesce(t.{token}, 0) {older} excluded.{token}", "", fences, "Replaced|Waits|Waited|Meanwhile|NoOrder|Snapshot"},
	{"several rows: their order", statement, `"{by t.key}", "ORDER BY "+tKey, "{by k.key}", "ORDER BY "+kKey,`, `"{by t.key}", "", "{by k.key}", "",`, fences, "DoNotDeadlock"},
	{"several rows: no half statement", sqlFile, "AND matched = wanted THEN RETURN true;\n  END IF;", "AND matched = wanted THEN RETURN true;\n  END IF;\n  RETURN true;", fences, "Meanwhile|Twice"},
	{"rekey: the new key's tombstone", statement, "\n    AND (SELECT last {older} $1::bigint FROM _g WHERE n = 2) RETURNING", " RETURNING", fences, "Rekey"},
	{"rekey: the old key's tombstone", statement, "WHEN _k.n = 1 THEN {pglock}.fence_row_bury({rel}, ROW({k.key}), {grant})", "WHEN _k.n = 1 THEN true", fences, "Rekey"},
	{"tombstones: the key's lock where there is none", sqlFile, "    IF FOUND THEN RETURN last; END IF;\n    INSERT", "    RETURN coalesce(last, 0);\n    INSERT", fences, "Waits|Waited|Meanwhile|NoOrder|Snapshot"},
	{"tombstones: the key's lock where there is one", sqlFile, "f.resource = r.id FOR UPDATE;", "f.resource = r.id;", fences, "CameAndWent"},
	{"tombstones: they only rise", sqlFile, "raised_at = excluded.raised_at WHERE f.last_token < excluded.last_token;", "raised_at = excluded.raised_at;", fences, "WriterNeedsLittle"},
	{"resource: a later token was here", sqlFile, "ELSIF tok < last_token THEN", "ELSIF false THEN", fences, "Tx|Raise|Resource|NoOrder"},
	{"resource: the fence rises", sqlFile, "SET last_token = tok, raised_at = clock_timestamp()", "SET raised_at = clock_timestamp()", fences, "Tx|Raise|Resource|NoOrder"},
	{"resource: the same grant's lock", sqlFile, "l.token > tok) FOR SHARE OF x;\n  IF FOUND", "l.token > tok);\n  IF FOUND", fences, "Awaited"},
	{"resource: its own lock", sqlFile, "ELSIF (last_name, last_slot) <> (lock, place) THEN", "ELSIF false THEN", fences, "Resource|Named"},
	{"resource: several in order", sqlFile, `SELECT DISTINCT r COLLATE "C" FROM unnest(resources) AS r ORDER BY 1 LOOP`, `SELECT r COLLATE "C" FROM unnest(resources) AS r LOOP`, fences, "OrderOfTheirNames"},
	{"a refusal that travels with BEGIN: resource", sqlFile, "IF (r.verdict IN ('raised', 'passed')) IS NOT TRUE THEN", "IF false THEN", fences, "Tx|Pool"},
	{"a refusal that travels with BEGIN: held", sqlFile, "IF verdict <> 'held' THEN", "IF false THEN", "./pglock", "Held"},
	{"what travels with BEGIN: the same grant's lock", sqlFile, "l.token > tok) FOR SHARE OF x;\n    IF FOUND AND", "l.token > tok);\n    IF FOUND AND", fences, "Awaited"},
	{"awaited: looked for where a resource is raised", sqlFile, "AND NOT EXISTS (SELECT FROM pglock.leases l WHERE l.name = lock AND l.slot = place AND l.token > tok) FOR SHARE OF x;\n  IF FOUND THEN", "FOR SHARE;\n  IF FOUND THEN", fences, "Awaited"},
	{"awaited: looked for with BEGIN", sqlFile, "AND NOT EXISTS (SELECT FROM pglock.leases l WHERE l.name = lock AND l.slot = place AND l.token > tok) FOR SHARE OF x;\n    IF FOUND AND", "FOR SHARE;\n    IF FOUND AND", fences, "Awaited"},
	{"awaited: looked for under a trigger", protect, "\n    AND coalesce((SELECT l.token FROM pglock.leases l WHERE l.name = x.name AND l.slot = x.slot), 0) <= x.last_token FOR", " FOR", fences, "Awaited"},
	{"awaited: a former holder's lock", sqlFile, "x.last_token = tok FOR SHARE;\n        verdict", "x.last_token = tok;\n        verdict", fences, "Awaited"},
	{"awaited: the lease is looked up by its key", protect, "WHERE l.name = x.name AND l.slot = x.slot), 0)", "WHERE l.name || '' = x.name AND l.slot = x.slot), 0)", fences, "ReadsTheLease"},
	{"awaited: by somebody who waits", sqlFile, " AND k.mode = 'ExclusiveLock') THEN", ") THEN", fences, "Awaited"},
	{"awaited: at this fence", sqlFile, "k.page = at[0] AND k.tuple = at[1] AND ", "", fences, "Awaited"},
	{"what travels with BEGIN: a fence of one lock", sqlFile, "x.resource = resources[1] AND x.name = lock AND", "x.resource = resources[1] AND", fences, "ShortWay"},
	{"what travels with BEGIN: a fence of one slot", sqlFile, "AND x.slot = place\n      AND x.last_token = tok AND NOT", "AND x.last_token = tok AND NOT", fences, "ShortWay"},
	{"what travels with BEGIN: a fence states the grant", sqlFile, "IF FOUND AND set_config('fencedlock.grant', pglock.stated_grant(lock, place, tok), true) <> '' THEN RETURN; END IF;", "IF FOUND THEN RETURN; END IF;", fences, "ShortWay"},
	{"what travels with BEGIN: a held lock states the grant", sqlFile, "true) END,\n      set_config('fencedlock.grant', pglock.stated_grant(lock, place, tok), true)) <>", "true) END) <>", fences, "ShortWay"},
	{"what travels with first writes: the fence", "fence/begin.go", "all.Queue(call.sql, call.args...)", "_ = call\n\tall.Queue(`SELECT`)", fences, "First|NoOrder"},
	{"what travels with first writes: a refusal is told as one", "fence/tx.go", "fenced || err != nil && codeOf(err) != refused {", "fenced || err != nil {", fences, "First"},
	{"what travels with first writes: their functions are asked", "fence/tx.go", "if err := first.Close(); err != nil {", "if err := first.Close(); false {", fences, "First"},
	{"what travels with first writes: a refusal calls no function", "fence/begin.go", "q.Fn = nil // which", "_ = q // which", fences, "First"},
	{"what travels with first writes: a failure calls no later function", "fence/begin.go", "sent.Fn = answered", "sent.Fn = nil", fences, "First"},
	{"what travels with first writes: the isolation level", "fence/begin.go", "all.BeginTx(pgx.TxOptions{IsoLevel: cfg.isolation})", "all.BeginTx(pgx.TxOptions{})", fences, "First"},
	{"what travels with first writes: the commit", "fence/begin.go", "all.Queue(\"commit\").Fn = answered", "all.Queue(\"select\").Fn = answered", fences, "First"},
	{"what travels with first writes: a commit that nobody knows of", "fence/begin.go", "if cfg.whole && unanswered && !uncommitted(err) {", "if false && unanswered {", fences, "First"},
	{"what travels with first writes: their answers have a say", "fence/tx.go", "cfg.whole = f == nil && !hasFunction(cfg.first)", "cfg.whole = f == nil", fences, "First"},
	{"a transaction that was ended within", "fence/tx.go", "return conn != nil && !conn.IsClosed() && conn.PgConn().TxStatus() == 'I'", "return false && conn != nil", fences, "EndedWithin"},
	{"what travels with BEGIN: the lock on the lease", sqlFile, "x.slot = 0 AND x.token = tok FOR KEY SHARE;", "x.slot = 0 AND x.token = tok;", fences, "NoOrder"},
	{"what travels with BEGIN: the expiry", sqlFile, "IF clock_timestamp() < until AND concat", "IF until IS NOT NULL AND concat", "./pglock", "Held|Overlap"},
	{"what travels with BEGIN: the limits", sqlFile, "concat(set_config('idle_in_transaction_session_timeout', idle_ms::text, true),", "concat(", "./pglock", "Held|Limit"},
	{"forgotten fences: what they kept out", sqlFile, "RETURN CASE WHEN tok < top THEN top ELSE 0 END;", "RETURN 0;", fences, "Forgotten"},
	{"forgotten fences: an old snapshot", sqlFile, "x.resource = '' FOR SHARE;", "x.resource = '';", fences, "Forgotten"},
	{"forgotten fences: a live grant exceeds them", sqlFile, "AND x.last_token < live ", "", fences, "Forgotten|ToAPrune"},
	{"forgotten fences: looked for under the mark of a resource", sqlFile, "      INSERT INTO pglock.fences (relation, resource, name, slot, last_token) VALUES (rel, res, lock, place, tok)\n        ON CONFLICT DO NOTHING;\n      IF FOUND THEN\n        last_token := pglock.fence_forgotten(tok);", "      last_token := pglock.fence_forgotten(tok);\n      INSERT INTO pglock.fences (relation, resource, name, slot, last_token) VALUES (rel, res, lock, place, tok)\n        ON CONFLICT DO NOTHING;\n      IF FOUND THEN", fences, "CameAndWasForgotten"},
	{"forgotten fences: looked for under the mark of a key", sqlFile, "    INSERT INTO pglock.fences (relation, resource, name, slot, last_token) VALUES (r.rel, r.id, lock, place, 0)\n      ON CONFLICT DO NOTHING;\n    IF FOUND THEN\n      DELETE FROM pglock.fences f WHERE f.relation = r.rel AND f.resource = r.id;\n      RETURN pglock.fence_forgotten(tok);", "    last := pglock.fence_forgotten(tok);\n    INSERT INTO pglock.fences (relation, resource, name, slot, last_token) VALUES (r.rel, r.id, lock, place, 0)\n      ON CONFLICT DO NOTHING;\n    IF FOUND THEN\n      DELETE FROM pglock.fences f WHERE f.relation = r.rel AND f.resource = r.id;\n      RETURN last;", fences, "CameAndWasForgotten"},
	{"forgotten fences: a lease that is being renewed is live", sqlFile, "x.expires_at + x.ttl > began;", "x.expires_at > began;", fences, "ToAPrune"},
	{"forgotten fences: the next grant exceeds them", sqlFile, "SELECT least(min(x.token), pg_sequence_last_value('pglock.fencing_token')) INTO live", "SELECT coalesce(min(x.token), 9007199254740992) INTO live", fences, "NotDrawnYet"},
	{"forgotten fences: a replay stays out", sqlFile, "SET last_token = top + 1, raised_at", "SET last_token = top, raised_at", fences, "Replay"},
	{"forgotten fences: who is behind them is told", sqlFile, "WHEN pglock.fence_behind(lock, place, last_token) THEN 'behind' ELSE 'stale' END;\n        DELETE", "ELSE 'stale' END;\n        DELETE", fences, "BehindWhat"},
	{"forgotten fences: not while grants are held back", sqlFile, "IF NOT FOUND OR NOT EXISTS (SELECT FROM pglock.guard_now g WHERE NOT g.other AND g.no_grants_before <= clock_timestamp())", "IF NOT FOUND", fences, "FencesThatStay"},
	{"forgotten fences: not while an old snapshot makes one", sqlFile, "x.resource = '' FOR NO KEY UPDATE SKIP LOCKED;\n  IF NOT FOUND OR", "x.resource = '';\n  IF NOT FOUND OR", fences, "FencesThatStay"},
	{"what travels with BEGIN: stricter limits", sqlFile, "current_setting('idle_in_transaction_session_timeout') = '0' AND current_setting('statement_timeout') = '0'\n    AND", "", "./pglock", "Held|Limit"},
	{"tokens: drawn by nobody", sqlFile, "RETURN coalesce(tok <= latest, false);", "RETURN true;", fences, "NeverGranted|Token"},
	{"held: the lock on the lease", sqlFile, "x.slot = place AND x.token = tok FOR KEY SHARE;", "x.slot = place AND x.token = tok;", fences, "NoOrder"},
	{"held: the expiry", sqlFile, "IF FOUND AND clock_timestamp() < until THEN", "IF FOUND THEN", "./pglock", "Held|Hold"},
	{"held: an old snapshot does not decide", sqlFile, "ELSIF FOUND AND current_setting('transaction_isolation') IN", "ELSIF false AND current_setting('transaction_isolation') IN", "./pglock", "Held"},
	{"held: the limits", sqlFile, "said := set_config('idle_in_transaction_session_timeout', idle_ms || 'ms', true);", "NULL;", "./pglock", "Held|Limit|Paused"},
	{"held: the takeover's lock", leases, "FOR UPDATE SKIP LOCKED) free", "FOR NO KEY UPDATE SKIP LOCKED) free", fences, "NoOrder"},
	{"protected: the fence that stands is locked", protect, ", 0) <= x.last_token FOR SHARE OF x;", ", 0) <= x.last_token;", fences, "Awaited"},
	{"protected: the statement is of this transaction", sqlFile, "pg_current_xact_id(), place", "0, place", fences, "Statement|Setting|EveryWrite"},
	{"protected: only a stated grant", protect, "  IF g.lock IS NULL THEN\n    PERFORM pglock.fence_not_stated(tbl);", "  IF g.lock IS NULL THEN\n    RETURN;", fences, "EveryWrite"},
	{"protected: a stale grant", protect, "    WHEN 'stale' THEN\n", "    WHEN 'stale' THEN\n      RETURN;\n", fences, "NoOrder"},
	{"protected: triggers fire always", protect, "ENABLE ALWAYS TRIGGER", "ENABLE TRIGGER", fences, "EveryWrite|Verify"},
	{"protected: TRUNCATE", protect, "OR TRUNCATE ON", "ON", fences, "EveryWrite"},
	{"guard: another server is noticed", leases, "g.started <> pg_postmaster_start_time() OR ", "", failovers, "OldPrimary"},
	{"guard: another database is noticed", leases, " OR g.database <> d.oid OR g.leases <> 'pglock.leases'::regclass AS other", " AS other", failovers, "RestoredDump"},
	{"guard: grants wait", leases, "    hold := hold + g.cap_us * interval '1 us';\n", "", failovers, "LagsBehind"},
	{"guard: tokens jump", leases, "    PERFORM pglock.move_token(greatest(clock - 1048576, seen), true);\n", "", failovers, "LagsBehind"},
	{"guard: tokens jump to the clock", leases, "greatest(clock - 1048576, seen)", "seen", failovers, "InTurn"},
	{"guard: a grant is on the disk", leases, "current_setting('synchronous_commit') <> 'off' AS ready", "true AS ready", failovers, "Crashes"},
	{"guard: the timeline of now", leases, "timeline := left(pg_walfile_name(pg_current_wal_lsn()), 8);", "timeline := (SELECT lpad(to_hex(timeline_id), 8, '0') FROM pg_control_checkpoint());", failovers, "UpForLonger"},
	{"guard: only the very grant is renewed", leases, " AND l.acquisition = r.acquisition AND l.token = r.token\n                FOR NO KEY", "\n                FOR NO KEY", failovers, "OldLease"},
	{"guard: only a declared single node waits less", leases, "IF g.single_node AND same AND", "IF same AND", "./migrations", "PlainRestart"},
	{"guard: only a plain restart is short", leases, "IF g.single_node AND same AND", "IF g.single_node AND", "./migrations", "PlainRestart"},
	{"guard: a clock that ran ahead is cut", leases, "WHERE expires_at > clock_timestamp() + ttl FOR NO KEY UPDATE", "WHERE false FOR NO KEY UPDATE", "./migrations", "Hold|Guard|Clamp|Clock|Ahead"},
	{"guard: a seen token is believed within a day", leases, "IF seen > clock + 86400000000 THEN", "IF false THEN", "./migrations", "Seen|Belie|Guard|Token"},
	{"once: only the holder begins", onceFile, "IF until IS NULL OR until <= clock_timestamp() THEN RETURN 'lost'; END IF;", "", "./migrations", "HolderOfItsLock"},
	{"once: the lock on the lease", onceFile, "x.token = tok FOR KEY SHARE;", "x.token = tok;", "./migrations", "NoGrantComesBetween"},
	{"once: what is done stays done", onceFile, "WHERE again AND x.outcome <> 'done' AND", "WHERE again AND", "./migrations", "LatestAttempt"},
	{"once: not again without a retry", onceFile, "WHERE again AND x.outcome", "WHERE x.outcome", "./migrations", "LatestAttempt"},
	{"once: a lost beginning is settled", onceFile, "AND x.token = tok AND x.ended_at IS NULL;\n  END IF;", "AND false;\n  END IF;", runners, "LostReply"},
	{"once: only the latest attempt ends it", onceFile, "AND x.token = tok AND x.ended_at IS NULL;\n  SELECT CASE", "AND x.ended_at IS NULL;\n  SELECT CASE", runners, "Paused"},
	{"once: it ends once", onceFile, "AND x.token = tok AND x.ended_at IS NULL;\n  SELECT CASE", "AND x.token = tok;\n  SELECT CASE", runners, "LostCommit"},
	{"once: the beginning is on the disk", onceFile, "IF current_setting('synchronous_commit') = 'off' THEN PERFORM", "IF false THEN PERFORM", "./migrations", "Durable"},
	{"once: the end is on the disk", onceFile, "IF current_setting('synchronous_commit') = 'off' THEN --", "IF false THEN --", "./migrations", "Durable"},
	{"once: the end is on the standby", onceFile, "x.due = o.due FOR KEY SHARE;", "x.due = o.due;", runners, "SynchronousStandby"},
	{"once: a success is of the transaction", "pglock/once/tx.go", "return r.endTx(ctx, tx, o, l)", "return r.endOnce(ctx, r.db, r.sql.end, o, l, Done, \"\")", runners, "LostCommit"},
	{"once: a lost commit is looked up", "pglock/once/attempt.go", "case cfg.inTx:", "case false:", runners, "LostCommit"},
	{"kinds: readers and permits share-lock the gate", kinds, "x.slot = 0 AND x.permits = kind FOR SHARE SKIP LOCKED;", "x.slot = 0 AND x.permits = kind;", protocol, "UnderWay"},
	{"kinds: who leaves no room locks the gate alone", kinds, "x.slot = 0 AND x.permits = was FOR UPDATE SKIP LOCKED;", "x.slot = 0 AND x.permits = was FOR SHARE SKIP LOCKED;", protocol, "UnderWay|Tied"},
	{"kinds: the look under the lock", kinds, "  SELECT o.* INTO status, token, owner, since, until, slot FROM pglock.obstacle(lock, kind, client) o;\n  IF status", "  status := NULL;\n  IF status", protocol, "Meanwhile"},
	{"kinds: the slots that were not released are locked", kinds, "IF mine < unreleased THEN RETURN; END IF;", "", protocol, "RenewalUnderWay|Tied"},
	{"kinds: one acquisition under way", kinds, "IF NOT pg_try_advisory_xact_lock(hashtextextended(id::text, 7251)) THEN RETURN; END IF;", "", protocol, "RepeatedAcquisition"},
	{"kinds: alone is a mutex again", kinds, "revoked = NULL, permits = 0", "revoked = NULL", protocol, "Tied"},
	{"kinds: a tied transaction of a slot holds the gate", sqlFile, "PERFORM FROM pglock.leases x WHERE x.name = lock AND x.slot = 0 FOR KEY SHARE;", "NULL;", protocol, "Tied"},
	{"kinds: a slot is locked against its tied transaction", kinds, "ORDER BY x.slot LIMIT 1 FOR UPDATE SKIP LOCKED;", "ORDER BY x.slot LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;", protocol, "Tied"},
	{"kinds: a writer that waits goes first", kinds, "IF NOT FOUND AND kind = -1 AND same THEN", "IF false THEN", protocol, "MakesRoom"},
	{"kinds: slot 0 that was deleted", leases, "THEN -1 ELSE 0 END)\n    ON CONFLICT", "THEN 0 ELSE 0 END)\n    ON CONFLICT", protocol, "SlotZero"},
	{"kinds: prune looks for others under the lock", leases, "l.slot = 0\n    AND NOT EXISTS (SELECT FROM pglock.leases o WHERE o.name = l.name AND o.slot > 0);", "l.slot = 0;", protocol, "SlotZero"},
	{"kinds: a lot is one", leases, "CONTINUE WHEN lots[k] = lots[k + 1];", "", protocol, "ALot"},
	{"kinds: a delay", leases, "x.name = names[k] AND x.slot = 0 AND x.permits = 0\n                AND greatest(x.expires_at + x.delay, x.not_before)", "x.name = names[k] AND x.slot = 0 AND x.permits = 0\n                AND greatest(x.expires_at, x.not_before)", locks, "LockDelay"},
	{"a batch: a delay", leases, "x.name = r.name AND x.slot = 0 AND x.permits = 0\n                AND greatest(x.expires_at + x.delay, x.not_before)", "x.name = r.name AND x.slot = 0 AND x.permits = 0\n                AND greatest(x.expires_at, x.not_before)", protocol, "Batch"},
	{"a batch: not under a transaction that holds it", leases, "FOR UPDATE SKIP LOCKED) x\n          WHERE (kinds", "FOR NO KEY UPDATE SKIP LOCKED) x\n          WHERE (kinds", protocol, "Batch"},
	{"a batch: an id once", leases, "AND x.acquisition IS DISTINCT FROM r.id AND x.revoked IS DISTINCT FROM r.id AND r.id IS NOT NULL AND r.ttl_us", "AND r.ttl_us", protocol, "Batch"},
	{"a batch: no longer than the cap", leases, "AND r.ttl_us BETWEEN 100000 AND cap", "AND r.ttl_us >= 100000", protocol, "Batch"},
	{"a batch: other kinds and lots", leases, "WHERE (kinds[r.ord] <> 0 OR lots[r.ord] IN (lots[r.ord - 1], lots[r.ord + 1])) IS NOT TRUE", "", protocol, "Batch"},
	{"a batch: a readers' lock is none of its own", leases, "x.name = r.name AND x.slot = 0 AND x.permits = 0\n", "x.name = r.name AND x.slot = 0\n", protocol, "Batch"},
	{"a batch: a token that fell behind", leases, "IF token <= last THEN                              -- a sequence that fell behind is moved, not obeyed\n        token := pglock.move_token(last, false);\n        UPDATE", "IF false THEN\n        UPDATE", protocol, "Batch"},
	{"a batch: marks go", leases, "IF waits[ord] > 0 THEN PERFORM pglock.wait_over(lock, client); END IF;", "", protocol, "Batch"},
	{"a batch: a token is mended where it was drawn", leases, "WHERE x.name = lock AND x.slot = 0;\n      END IF;", "WHERE x.name = names[ord] AND x.slot = 0;\n      END IF;", protocol, "Batch"},
	{"a batch: a plan for few leases serves for many", leases, "FROM pglock.leases x WHERE x.name = r.name AND x.slot = 0 AND x.acquisition = r.id", "FROM pglock.leases x WHERE x.name || '' = r.name AND x.slot = 0 AND x.acquisition = r.id", protocol, "Batch"},
	{"a batch: each ends its own", leases, "x.slot = 0 AND x.acquisition = r.id AND x.expires_at > 'epoch'\n", "x.slot = 0 AND x.expires_at > 'epoch'\n", protocol, "Batch"},
	{"a batch: what nobody was told of is not kept", leases, "not_before = CASE WHEN m.unheld THEN", "not_before = CASE WHEN false THEN", protocol, "Batch"},
	{"kinds: a delay of a slot", kinds, "AND (x.slot = 0 OR kind >= 0 OR NOT same)\n      AND greatest(x.expires_at + x.delay, x.not_before)", "AND (x.slot = 0 OR kind >= 0 OR NOT same)\n      AND greatest(x.expires_at, x.not_before)", protocol, "ADelay"},
	{"kinds: one name lost is all lost", "pglock/renewal.go", `a == "" || a == "renewed" || a`, `a == "" || a`, locks, "OneName"},
	{"kinds: MaxHold", "pglock/lease.go", "if r.maxHold > 0 {", "if false {", locks, "ForgottenLease"},
	{"kinds: nothing is renewed beyond MaxHold", "pglock/lease.go", "l.final = sent.mono >= last.mono", "l.final = false", locks, "MaxHoldEnds"},
	{"kinds: what the caller holds is refused", "pglock/reentrant.go", "if !slices.Contains(lc.names, p.name) {", "if true || !slices.Contains(lc.names, p.name) {", locks, "CallerHolds|BecomeAWriter"},
	{"renewal: the lapse is looked for under the lock", leases, "            OFFSET 0) m\n", "            ) m\n", protocol, "HeldUpUntilTheLapse"},
	{"renewal: what was not written is not renewed", leases, "IF written <> cardinality(done) THEN done := NULL; END IF;", "", protocol, "Renewal"},
	{"revoke: renewals are refused", leases, "AND l.acquisition = r.acquisition AND l.token", "AND r.acquisition IN (l.acquisition, l.revoked) AND l.token", locks, "RevokeEnds"},
	{"revoke: it waits for the expiry", kinds, "IF until > clock_timestamp() THEN\n    status := 'revoked';", "IF false THEN\n    status := 'revoked';", locks, "RevokeEnds"},
	{"revoke: a token is drawn", kinds, "SET token = revoke.token, acquisition = revocation", "SET acquisition = revocation", locks, "RevokeEnds"},
	{"revoke: a hint renews nothing else", "pglock/keeper.go", "if int64(l.token) == token && l.isRenewed() {\n\t\t\tl.renewAt = k.client.clock.now()", "if int64(l.token) == token {\n\t\t\tl.waiters = append(l.waiters, make(chan error, 1))\n\t\t\tl.renewAt = k.client.clock.now()", locks, "Hint"},
	{"revoke: whoever has the name alone meanwhile is left alone", kinds, "IF 0 = ANY (mine) OR NOT EXISTS", "IF true OR NOT EXISTS", protocol, "Revocation"},
	{"revoke: without slot 0 the others get their token", kinds, "IF 0 = ANY (mine) OR NOT EXISTS (SELECT FROM pglock.leases x WHERE x.name = lock AND x.slot = 0) THEN", "IF 0 = ANY (mine) THEN", protocol, "Revocation"},
	{"revoke: another one changes nothing", kinds, "revoked = coalesce(x.revoked, x.acquisition)", "revoked = x.acquisition", locks, "TwoRevocations"},
	{"revoke: one slot keeps all from others", kinds, "WHERE x.name = lock AND x.revoked IS NOT NULL AND greatest(x.expires_at, x.not_before) > clock_timestamp() ORDER BY 5", "WHERE false AND greatest(x.expires_at, x.not_before) > clock_timestamp() ORDER BY 5", locks, "TwoRevocations"},
	{"waiting: a mark of another kind goes", "pglock/queue.go", "|| q.waiters[0].config.kind != q.kind {", "{", locks, "GivesUpGoOn"},
	{"waiting: a writer is marked though it hears nothing", "pglock/queue.go", "(hears || w.isShared || qs", "(hears || qs", locks, "HearsNothing"},
	{"bequests: who hears nothing has its turn", "pglock/queue.go", "|| qs.client.clock.left(w.since) < -qs.client.patience)", ")", locks, "HearsNothingHasItsTurn"},
	{"revoke: an acquisition that was revoked is over", leases, "AND x.revoked IS DISTINCT FROM acquisitions[k] AND acquisitions[k]", "AND acquisitions[k]", protocol, "RepeatedAcquisition"},
	{"revoke: an acquisition of a slot that was revoked is over", kinds, "x.name = ANY (names) AND id IN (x.acquisition, x.revoked);", "x.name = ANY (names) AND x.acquisition = id;", protocol, "RepeatedAcquisition"},
	{"waiting: the release of a slot locks the gate", leases, "x.slot = 0 FOR SHARE SKIP LOCKED;\n      END IF;", "x.slot = 0;\n      END IF;", protocol, "MakesRoom"},
	{"waiting: of two releases one sees that it is the last", leases, "x.slot = 0 FOR NO KEY UPDATE SKIP LOCKED;\n      ELSE", "x.slot = 0 FOR SHARE SKIP LOCKED;\n      ELSE", protocol, "MakesRoom"},
	{"waiting: a writer behind readers keeps its mark", waiting, "EXIT WHEN NOT FOUND OR m.kind >= 0 AND readers;", "EXIT WHEN NOT FOUND;", protocol, "MakesRoom"},
	{"waiting: readers pass when the writer before them gives up", waiting, "IF woken OR NOT there OR kind = 0 AND EXISTS", "IF woken OR NOT there OR false AND EXISTS", protocol, "MakesRoom"},
	{"waiting: what is held wakes nobody", waiting, "EXIT WHEN EXISTS (SELECT FROM pglock.obstacle(m.name, m.kind, m.client) o WHERE o.status IN ('held', 'other_kind'));", "", protocol, "WakingForAHeld"},
	{"waiting: a mark out of date is passed over", waiting, "x.name = names[k] AND x.until > clock_timestamp()\n          AND (x.fair", "x.name = names[k]\n          AND (x.fair", protocol, "WaiterThatDied"},
	{"waiting: a mark out of date is taken away", waiting, "x.until <= clock_timestamp() FOR UPDATE SKIP LOCKED) dead", "false FOR UPDATE SKIP LOCKED) dead", protocol, "WaiterThatDied"},
	{"waiting: a dead fair waiter is passed over", waiting, "SET woken = true, until = least(w.until, clock_timestamp() + interval '3 s')", "SET woken = true", protocol, "DeadWaiter"},
	{"waiting: a look at a place writes nothing", waiting, "placed := FOUND AND NOT mine.woken AND", "placed := false AND", protocol, "LookingAtAPlace"},
	{"waiting: a release hands over", "pglock/queue.go", "if q == nil || len(q.waiters) == 0 || q.holder != nil {\n\t\treturn nil", "if true {\n\t\treturn nil", locks, "HandsTheLockOver"},
	{"waiting: who is faster each time steps back", "pglock/streak.go", "if q.isOverdue() {\n\t\tq.streak = 0", "if false {\n\t\tq.streak = 0", locks, "FasterEachTime"},
	{"waiting: who asks beside its own release is counted", "pglock/queue.go", "case a.awaited:", "case false:", locks, "AsksBesideItsOwnRelease"},
	{"waiting: so is who asks for several names", "pglock/batch.go", "a.awaited || one.awaited", "a.awaited", locks, "AsksBesideItsOwnRelease"},
	{"waiting: nor is it handed what it stands back from", "pglock/queue.go", "q.standBack() > 0 || overdue", "overdue", locks, "AsksBesideItsOwnRelease"},
	{"waiting: a streak counts", "pglock/streak.go", "q := qs.of(name)\n\tq.lengthen()", "q := qs.of(name)", locks, "FasterEachTime"},
	{"waiting: who meets a locked row is marked", waiting, "x.expires_at > clock_timestamp() AND x.acquisition IS DISTINCT FROM acquisitions[k]\n", "false\n", protocol, "WhileItIsHandedOn"},
	{"waiting: and marked anew, once it is not", waiting, "interval '29 s'", "interval '1 minute'", protocol, "WhileItIsHandedOn"},
	{"waiting: and asks again, soon", waiting, "status := 'marked'; remaining_us := 0;", "status := 'marked'; remaining_us := 30000000;", protocol, "WhileItIsHandedOn"},
	{"waiting: who was beaten keeps its turn", waiting, "AND (w.fair, w.kind, w.wait) = (excluded.fair, excluded.kind, excluded.wait) THEN", "AND false THEN", protocol, "WokenInVain"},
	{"waiting: who met a locked row keeps its turn", waiting, "IF status = 'retry' AND mine.woken AND NOT fairs[k] THEN", "IF false THEN", protocol, "WokenInVain"},
	{"waiting: a fair one is not handed over to", "pglock/queue.go", "if w.config.fair || len(w.queues) > 1 {", "if len(w.queues) > 1 {", locks, "FairProcessesTakeTurns"},
	{"bequests: a waiter asks for what it was promised", "pglock/queue.go", "w.promise(r.id)\n\t\t\tr.id = w.id", "w.promise(r.id)", locks, "AReleaseGrants"},
	{"bequests: a mark does not outlive its waiter", "pglock/note.go", "if slices.Contains(waits, n.wait) {", "if false && slices.Contains(waits, n.wait) {", locks, "BeforeItWasSent"},
	{"bequests: a short TTL is not worth one", "pglock/options.go", " && lc.ttl >= 500*time.Millisecond &&", " &&", locks, "OnlyWakes"},
	{"bequests: who gives up gives back", "pglock/queue.go", "if w.promised && !granted {", "if false {", locks, "OneWhoGaveUpGoesOn"},
	{"bequests: what is not granted yet is waited for", "pglock/settle.go", "case (s.heir || s.ghost", "case (s.ghost", locks, "BeingGrantedToOneWhoGaveUp"},
	{"bequests: an id that is over is not asked for again", "pglock/queue.go", `(a.status == "granted" || a.status == "spent" || a.disowned) {`, `a.status == "granted" {`, locks, "NotFetched|GivenBackIsNotAskedFor"},
	{"bequests: an id that came too late is not asked for again", "pglock/queue.go", `(a.status == "granted" || a.status == "spent" || a.disowned) {`, `(a.status == "spent" || a.disowned) {`, locks, "GivenBackIsNotAskedFor"},
	{"bequests: nor is one that came too late", "pglock/queue.go", `(a.status == "granted" || a.status == "spent" || a.disowned) {`, `(a.status == "spent" || a.disowned) {`, locks, "FetchedTooLate"},
	{"bequests: not of what would be lost with it", "pglock/batch.go", "r.wait != 0 && r.isPlain()", "r.wait != 0", locks, "OnlyWakes"},
	{"bequests: the lease is renewed soon", "pglock/lease.go", "l.renewAt = sooner(l.renewAt, a.sent.add(max(a.remaining-", "_ = sooner(l.renewAt, a.sent.add(max(a.remaining-", locks, "AReleaseGrants"},
	{"bequests: who hears in good time does not ask", "pglock/mark.go", "w.id, w.made = id, w.queue.client.clock.now()", "w.id = id", locks, "DoesNotAsk"},
	{"bequests: they count from before the asking", "pglock/bequest.go", "c.clock.left(w.made.add(lasts))", "lasts", locks, "DoesNotAsk|MayHaveHeardTooLate|TookTooLong"},
	{"bequests: a pause stretches nothing", "pglock/bequest.go", "remaining: left, sent: now,", "remaining: left, sent: func(instant) instant { return c.clock.now() }(now),", locks, "NotTrustedForLonger"},
	{"bequests: not what may be half over", "pglock/bequest.go", "|| left < lasts/2 ", "", locks, "MayHaveHeardTooLate"},
	{"bequests: only to the acquisition that waits", "pglock/bequest.go", "b.id != w.id || ", "", locks, "OfAnotherGrant"},
	{"bequests: not while it asks", "pglock/bequest.go", "|| w.request != nil ", "", locks, "HearsWhileItAsks"},
	{"bequests: not while it looks at its place", "pglock/mark.go", "w.made = instant{} // this", "_ = instant{} // this", locks, "HearsWhileItAsks"},
	{"waiting: a silent listener is not believed", "pglock/listener.go", "case !arrived:", "case !arrived && false:", locks, "SilentListener"},
	{"bequest: only what is plain", leases, "CASE WHEN heirs[ord] THEN acquisitions[ord:ord] END", "acquisitions[ord:ord]", protocol, "NotBequeathed"},
	{"bequest: three seconds", waiting, "least(m.ttl, interval '3 s')", "m.ttl", protocol, "HasWaitedLongest"},
	{"bequest: nothing of the grant before is left", waiting, "not_before = 'epoch', delay = '0', metadata = NULL, revoked = NULL", "revoked = NULL", protocol, "HasWaitedLongest"},
	{"bequest: a mutex", waiting, "x.slot = 0 AND x.permits = 0 AND x.expires_at = 'epoch'", "x.slot = 0 AND x.expires_at = 'epoch'", protocol, "NotBequeathed"},
	{"bequest: what is kept is not granted", waiting, "AND x.not_before <= clock_timestamp()\n", "\n", protocol, "NotBequeathed"},
	{"bequest: an id once", waiting, "AND x.acquisition IS DISTINCT FROM m.acquisition AND", "AND", protocol, "NotBequeathed"},
	{"bequest: not what was revoked", waiting, "AND x.revoked IS DISTINCT FROM m.acquisition\n", "\n", protocol, "NotBequeathed"},
	{"bequest: grants are held back", waiting, "AND g.no_grants_before <= clock_timestamp() AND NOT", "AND NOT", protocol, "NotBequeathed"},
	{"bequest: another server is noticed", waiting, "AND NOT g.other AND g.last_token <", "AND g.last_token <", protocol, "NotBequeathed"},
	{"bequest: not where no token is left", waiting, "AND g.last_token < 9007199254740991 ", "", locks, "TokensThatHaveRunOut"},
	{"bequest: no longer than the cap", waiting, "AND m.ttl BETWEEN interval '100 ms' AND g.cap_us * interval '1 us'", "", protocol, "NotBequeathed"},
	{"bequest: not under a transaction that holds it", waiting, "FOR UPDATE OF x SKIP LOCKED) free", "FOR NO KEY UPDATE OF x SKIP LOCKED) free", protocol, "NotBequeathed"},
	{"bequest: a fair one goes first", waiting, "AND m.acquisition IS NOT NULL AND NOT EXISTS (SELECT FROM pglock.waits x WHERE x.name = m.name\n          AND x.fair AND", "AND m.acquisition IS NOT NULL AND NOT EXISTS (SELECT FROM pglock.waits x WHERE x.name = m.name\n          AND false AND", protocol, "NotBequeathed"},
	{"bequest: a token that fell behind", waiting, "IF drawn <= last THEN", "IF false THEN", protocol, "LaggingSequence"},
	{"bequest: who gave up meanwhile is granted nothing", waiting, "m := mine; granted", "granted", protocol, "JustBeforeABequest"},
	{"bequest: a label", waiting, "concat(left(label, 1000)), ttls_us", "left(label, 1000), ttls_us", protocol, "WithoutALabel"},
	{"bequest: its mark goes", waiting, "  DELETE FROM pglock.waits w WHERE w.name = m.name AND w.client = m.client;\n  RETURN concat", "  RETURN concat", protocol, "HasWaitedLongest"},
	{"bequest: by a release alone", waiting, "IF durability IS NOT NULL AND m.kind = 0 AND m.acquisition", "IF m.acquisition", protocol, "OnlyARelease"},
	{"bequest: its owner is told of it", waiting, "concat_ws(',', m.wait, granted)", "m.wait", protocol, "HasWaitedLongest"},
	{"bequest: it is on the disk", waiting, "PERFORM set_config('synchronous_commit', CASE durability WHEN 'off' THEN 'local' ELSE durability END, true);", "NULL;", protocol, "ABequestIsDurable"},
	{"bequest: it is on the disk though the session does not care", waiting, "CASE durability WHEN 'off' THEN 'local' ELSE durability END", "durability", protocol, "ABequestIsDurable"},
	{"hand-over: whose it was", waiting, "x.permits = 0 AND x.acquisition = ended_acquisitions[1] AND", "x.permits = 0 AND", protocol, "HandOver"},
	{"hand-over: not what is over", waiting, "x.acquisition = ended_acquisitions[1] AND x.expires_at > 'epoch'", "x.acquisition = ended_acquisitions[1]", protocol, "HandOver"},
	{"hand-over: not before its time", waiting, "AND x.not_before <= clock_timestamp() AND acquisitions[1] <>", "AND acquisitions[1] <>", protocol, "HandOver"},
	{"hand-over: not to itself", waiting, "AND acquisitions[1] <> x.acquisition AND", "AND", protocol, "HandOver"},
	{"hand-over: not to what was revoked", waiting, "acquisitions[1] <> x.acquisition AND x.revoked IS DISTINCT FROM acquisitions[1]", "acquisitions[1] <> x.acquisition", protocol, "HandOver"},
	{"hand-over: not while grants are held back", waiting, "AND g.ready AND NOT g.other AND seen", "AND NOT g.other AND seen", protocol, "HandOver"},
	{"hand-over: not on another server", waiting, "AND g.ready AND NOT g.other AND seen", "AND g.ready AND seen", protocol, "HandOver"},
	{"hand-over: not where tokens were lost", waiting, "seen <= g.last_token AND ttls_us[1]", "ttls_us[1]", protocol, "HandOver"},
	{"hand-over: not beyond the cap", waiting, "ttls_us[1] BETWEEN 100000 AND g.cap_us", "ttls_us[1] > 0", protocol, "HandOver"},
	{"hand-over: not past a tied transaction", waiting, "FOR UPDATE OF x SKIP LOCKED) mine", "FOR NO KEY UPDATE OF x SKIP LOCKED) mine", protocol, "HandOver"},
	{"hand-over: nobody waits for a row", waiting, "FOR UPDATE OF x SKIP LOCKED) mine", "FOR UPDATE OF x) mine", protocol, "HandOver"},
	{"hand-over: mutexes only", waiting, "AND (ended_slots[1] <> 0 OR kinds[1] <> 0) IS NOT TRUE THEN", "THEN", protocol, "HandOver"},
	{"hand-over: a lagging sequence", waiting, "token := pglock.move_token(last, false);\n        UPDATE pglock.leases x SET token = exchange.token", "UPDATE pglock.leases x SET token = exchange.token", protocol, "HandOver"},
	{"hand-over: its mark", waiting, "IF waits[1] > 0 THEN PERFORM pglock.wait_over(names[1], client); END IF;", "", protocol, "HandOver"},
	{"hand-over: who waits elsewhere", waiting, "clock_timestamp(), ttls_us[1], 0, false, others)", "clock_timestamp(), ttls_us[1], 0, false, false)", protocol, "Exchange"},
	{"bequest: an exchange makes one", waiting, "PERFORM pglock.wake(ended_names, durability);", "PERFORM pglock.wake(ended_names);", protocol, "ExchangeThatComes"},
	{"bequest: what was granted is not waited for", waiting, "    IF heir THEN\n", "    IF false THEN\n", protocol, "HasBeenGranted"},
	{"bequest: a mark says what it said last", waiting, "\n          acquisition = excluded.acquisition, owner = excluded.owner, ttl = excluded.ttl,", "", protocol, "SaidLast"},
	{"bequest: a mark that was not taken back", waiting, "    IF NOT there THEN\n      ord := k;", "    IF false THEN\n      ord := k;", protocol, "Unmark|GivingUp"},
	{"bequest: an acquisition that was not taken back", waiting, "      IF NOT FOUND THEN\n        ord := k;", "      IF false THEN\n        ord := k;", protocol, "Unmark|GivingUp"},
	{"bequest: only the same acquisition is taken back", waiting, "AND x.client = unmark.client AND x.acquisition = acquisitions[k] FOR", "AND x.client = unmark.client FOR", protocol, "Unmark"},
	{"poolers: nothing is prepared behind one", "fence/ask.go", "backend == conn.PgConn().PID() && ", "", fences, "PgBouncer"},
}

func main() {
	log.SetFlags(0)
	root := must(exec.Command("git", "rev-parse", "--show-toplevel").Output())
	dir, err := os.MkdirTemp("", "fencedlock-break")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // it is a temporary one
	copyTree(strings.TrimSpace(string(root)), dir)

	onlyLook := flag.Bool("n", false, "break nothing")
	flag.Parse()
	survived, missing := 0, 0
	for _, r := range rules {
		if flag.NArg() > 0 && !slices.ContainsFunc(flag.Args(), func(part string) bool { return strings.Contains(r.name, part) }) {
			continue
		}
		start := time.Now()
		path := filepath.Join(dir, r.file)
		whole := must(os.ReadFile(path))
		if n := bytes.Count(whole, []byte(r.text)); n != 1 {
			fmt.Printf("MISSING   %s: its text stands %d times in %s\n", r.name, n, r.file)
			missing++
			continue
		}
		if *onlyLook {
			continue
		}
		broken := bytes.Replace(whole, []byte(r.text), []byte(r.instead), 1)
		if err := os.WriteFile(path, broken, 0o600); err != nil {
			log.Fatal(err)
		}
		test := exec.Command("go", "test", "-count=1", "-failfast", "-timeout", "3m", "-run", r.run, r.pkg)
		test.Dir = dir
		out, err := test.CombinedOutput()
		switch {
		case err == nil:
			survived++
			fmt.Printf("SURVIVED  %s\n", r.name)
		case !bytes.Contains(out, []byte("--- FAIL")) && !bytes.Contains(out, []byte("test timed out")):
			log.Fatalf("%s: the test did not run:\n%s", r.name, out)
		default:
			fmt.Printf("caught    %s (%s, %v)\n", r.name, failed(out), time.Since(start).Round(time.Second))
		}
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			log.Fatal(err)
		}
	}
	switch {
	case missing > 0:
		os.Exit(2)
	case survived > 0:
		os.Exit(1)
	}
}

// failed is the name of the first test that failed.
func failed(out []byte) string {
	_, after, _ := bytes.Cut(out, []byte("--- FAIL: "))
	name, _, _ := bytes.Cut(after, []byte(" "))
	return string(name)
}

// copyTree copies what git knows of, and what it would.
func copyTree(from, to string) {
	list := exec.Command("git", "ls-files", "-co", "--exclude-standard")
	list.Dir = from
	for _, name := range strings.Fields(string(must(list.Output()))) {
		data, err := os.ReadFile(filepath.Join(from, name))
		if os.IsNotExist(err) {
			continue // deleted, and not yet committed
		}
		target := filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
			log.Fatal(err)
		}
		if err := os.WriteFile(target, must(data, err), 0o600); err != nil {
			log.Fatal(err)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
