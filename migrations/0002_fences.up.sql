-- Fences: what remembers the latest token that has written somewhere, and the functions that the Go package fence calls in
-- the transaction of the writer.
--
-- The rules that every function keeps:
--   * A fence only rises. What was seen without a lock is enough to refuse, never enough to pass.
--   * Whoever may pass waits for whoever is ahead, and then looks again at what that one left. At read committed a later
--     statement sees it; at repeatable read and serializable PostgreSQL raises 40001.
--   * The writer's own table is never touched here: its owner need not be ours.

-- One row for each resource that somebody fenced by name, and one for each row that a fenced delete took away and nobody has
-- brought back (a tombstone). The rows of tables that live carry their token themselves.
CREATE TABLE pglock.fences (
  relation   regclass NOT NULL,        -- 0 for a named resource; of a tombstone the table (a root, if it is partitioned)
  resource   text COLLATE "C" NOT NULL,-- the name, up to 1024 bytes; of a tombstone a hash of the key
  name       text COLLATE "C" NOT NULL,-- the lock, and its slot, whose tokens count for a named resource; of a tombstone the
  slot       int NOT NULL,             -- lock that the delete was made under
  last_token bigint NOT NULL,
  raised_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (relation, resource)
) WITH (fillfactor = 70);              -- a fence that rises stays on its page

-- The first token after those of the fences that were forgotten: what no fence remembers may have been written with any before it. That
-- one is not enough to compare with: of what its own grant has deleted, a copy of its insert stays out too.
INSERT INTO pglock.fences (relation, resource, name, slot, last_token) VALUES (0::oid, '', '', 0, 0);

-- Whether a token can have been granted. Where the lock has no row here, it lives in another database, or was pruned. Then the
-- clock says nothing: tokens go on from a clock that was once wrong, and from wherever raise_token_floor has put them, which
-- is 6755399441055744 at most. The bound is that and 2^40 more, a thousand grants a second for 34 years. A made-up token
-- below it shuts a fence until the owner of the locks raises the floor beyond it; one above would shut it for good.
CREATE FUNCTION pglock.fence_credible(lock text, place int, tok bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE latest bigint;
BEGIN
  IF (octet_length(lock) BETWEEN 1 AND 255 AND place >= 0 AND tok BETWEEN 1 AND 9007199254740991) IS NOT TRUE THEN
    RAISE EXCEPTION 'not a grant: lock "%", slot %, token %', lock, place, tok USING ERRCODE = 'invalid_parameter_value';
  END IF;
  SELECT x.token INTO latest FROM pglock.leases x WHERE x.name = lock AND x.slot = place AND x.token > 0;
  IF NOT FOUND THEN
    latest := 6755399441055744 + 1099511627776;
  ELSIF tok > latest AND current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
    latest := pg_sequence_last_value('pglock.fencing_token');  -- the grant may be later than the snapshot
  END IF;
  RETURN coalesce(tok <= latest, false);
END $$;

-- Whether the lock service of this database has lost its memory: a token was seen somewhere, and it has not drawn that yet.
CREATE FUNCTION pglock.fence_behind(lock text, place int, seen bigint) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT seen > pg_sequence_last_value('pglock.fencing_token') AND EXISTS (SELECT FROM pglock.leases x WHERE x.name = lock AND x.slot = place)
$$;

-- Where there is no fence: the first token after those that were forgotten, if this one is earlier; else 0. To be asked when nobody
-- else can make a fence there any more, since one may have come and been forgotten meanwhile.
CREATE FUNCTION pglock.fence_forgotten(tok bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE top bigint;
BEGIN
  IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN  -- 40001 if it has risen since the snapshot
    SELECT x.last_token INTO top FROM pglock.fences x WHERE x.relation = 0::oid AND x.resource = '' FOR SHARE;
  ELSE
    SELECT x.last_token INTO top FROM pglock.fences x WHERE x.relation = 0::oid AND x.resource = '';
  END IF;
  RETURN CASE WHEN tok < top THEN top ELSE 0 END;
END $$;

-- Where a fence stands at a token: the later one whose transaction waits to raise it, by what its lock has granted; else NULL. Sharers
-- would let in one another for ever, and it would wait. It is asked where a later grant exists, since to read pg_locks is dear.
CREATE FUNCTION pglock.fence_awaited(rel regclass, res text, lock text, place int, tok bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  later bigint := (SELECT x.token FROM pglock.leases x WHERE x.name = lock AND x.slot = place AND x.token > tok);
  at point := (SELECT x.ctid::text::point FROM pglock.fences x WHERE later IS NOT NULL AND x.relation = rel AND x.resource = res);
BEGIN
  RETURN CASE WHEN at IS NOT NULL AND EXISTS (SELECT FROM pg_locks k
    WHERE k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()) AND k.relation = 'pglock.fences'::regclass
      AND k.page = at[0] AND k.tuple = at[1] AND k.mode = 'ExclusiveLock') THEN later END;
END $$;

-- Raises one fence in the caller's transaction, which others then wait for:
--   raised         from an earlier token, or for the first time
--   passed         this grant had raised it before. Only share-locked: transactions of one grant run side by side
--   stale          a later token was here, or waits to be, or may have been and was forgotten: last_token
--   behind         the same, and the lock service of this database has not drawn that token yet: it has lost its memory
--   other_lock     it belongs to another lock: last_name, last_slot. It is the first one's that raises it, for good
--   never_granted  no grant of this lock can have the token
CREATE FUNCTION pglock.fence_lift(rel regclass, res text, lock text, place int, tok bigint, OUT verdict text, OUT last_token bigint,
  OUT last_name text, OUT last_slot int)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  IF NOT pglock.fence_credible(lock, place, tok) THEN verdict := 'never_granted'; END IF;
  WHILE verdict IS NULL LOOP                             -- again: somebody was ahead. Look at what it left
    SELECT x.last_token, x.name, x.slot INTO last_token, last_name, last_slot
      FROM pglock.fences x WHERE x.relation = rel AND x.resource = res;
    IF NOT FOUND THEN                                    -- or not yet committed, or not in this snapshot: 40001
      INSERT INTO pglock.fences (relation, resource, name, slot, last_token) VALUES (rel, res, lock, place, tok)
        ON CONFLICT DO NOTHING;
      IF FOUND THEN
        last_token := pglock.fence_forgotten(tok);
        verdict := CASE WHEN last_token = 0 THEN 'raised' WHEN pglock.fence_behind(lock, place, last_token) THEN 'behind' ELSE 'stale' END;
        DELETE FROM pglock.fences x WHERE x.relation = rel AND x.resource = res AND verdict <> 'raised';
      END IF;
    ELSIF (last_name, last_slot) <> (lock, place) THEN
      verdict := 'other_lock';
    ELSIF tok < last_token THEN
      verdict := CASE WHEN pglock.fence_behind(lock, place, last_token) THEN 'behind' ELSE 'stale' END;
    ELSIF tok > last_token THEN
      UPDATE pglock.fences x SET last_token = tok, raised_at = clock_timestamp()
        WHERE x.relation = rel AND x.resource = res AND x.last_token < tok;
      verdict := CASE WHEN FOUND THEN 'raised' END;
    ELSE
      last_token := coalesce(pglock.fence_awaited(rel, res, lock, place, tok), tok);
      IF last_token > tok THEN
        verdict := 'stale';
      ELSE
        PERFORM FROM pglock.fences x WHERE x.relation = rel AND x.resource = res AND x.last_token = tok FOR SHARE;
        verdict := CASE WHEN FOUND THEN 'passed' END;
      END IF;
    END IF;
  END LOOP;
END $$;

-- What the setting fencedlock.grant holds where a transaction has stated its grant, for tables that are protected (see
-- 0003_protect.up.sql): for this schema, and bound to this transaction. In any other one, on the same connection too, it says nothing.
CREATE FUNCTION pglock.stated_grant(lock text, place int, tok bigint) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT concat_ws(' ', 'pglock'::regnamespace::oid, pg_current_xact_id(), place, tok, lock)
$$;

-- Raises the fence of a named resource, and states the grant. It answers as fence_lift does.
CREATE FUNCTION pglock.fence_raise(res text, lock text, place int, tok bigint, OUT verdict text, OUT last_token bigint,
  OUT last_name text, OUT last_slot int)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE said text;
BEGIN
  IF (octet_length(res) BETWEEN 1 AND 1024) IS NOT TRUE THEN
    RAISE EXCEPTION 'a resource has a name of 1 to 1024 bytes' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  -- What the transactions of a grant do again and again comes first. Where it is locked it was found credible.
  PERFORM FROM pglock.fences x WHERE x.relation = 0::oid AND x.resource = res AND x.name = lock AND x.slot = place
    AND x.last_token = tok AND NOT EXISTS (SELECT FROM pglock.leases l WHERE l.name = lock AND l.slot = place AND l.token > tok) FOR SHARE OF x;
  IF FOUND THEN
    verdict := 'passed';
  ELSE
    SELECT * INTO verdict, last_token, last_name, last_slot FROM pglock.fence_lift(0::oid::regclass, res, lock, place, tok);
  END IF;
  IF verdict IN ('raised', 'passed') THEN
    said := set_config('fencedlock.grant', pglock.stated_grant(lock, place, tok), true);
  END IF;
END $$;

-- The same for several resources, in the order of their names, so that nobody waits for whoever waits for him. It ends at the
-- first one that is refused, and tells which; those before it stay raised until the transaction ends.
CREATE FUNCTION pglock.fence_raise_all(resources text[], lock text, place int, tok bigint, OUT resource text, OUT verdict text,
  OUT last_token bigint, OUT last_name text, OUT last_slot int)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
  FOR resource IN SELECT DISTINCT r COLLATE "C" FROM unnest(resources) AS r ORDER BY 1 LOOP
    SELECT f.verdict, f.last_token, f.last_name, f.last_slot INTO verdict, last_token, last_name, last_slot
      FROM pglock.fence_raise(resource, lock, place, tok) AS f;
    EXIT WHEN verdict NOT IN ('raised', 'passed');
  END LOOP;
END $$;

-- Ties the caller's transaction to a grant: until it ends, no later grant of the lock can be made. Whoever tries is told that the
-- lock is held; renewals and the release pass. The transaction gets limits, so that a writer that was paused or cut off keeps
-- nobody away for longer: on being idle, on each statement, and from PostgreSQL 17 on in all. A stricter one stays.
--   held           unexpired, and the lock's latest grant
--   expired        nobody was granted the lock since, but its time is over: a check that came again would keep others away
--   stale          a later grant exists: last_token
--   elsewhere      this database has no such lock (at repeatable read and serializable: it had none when the snapshot was taken)
--   never_granted  no grant of this lock can have the token
-- At repeatable read and serializable it is 40001 where the snapshot is too old to tell.
CREATE FUNCTION pglock.fence_check(lock text, place int, tok bigint, idle_ms int, total_ms int, OUT verdict text,
  OUT last_token bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
  until timestamptz;
  said text;
BEGIN
  -- Assignments, since a query costs ten times as much. To read a text as an interval is dear too, and most have no limit yet.
  said := current_setting('idle_in_transaction_session_timeout');
  IF said = '0' OR said::interval > idle_ms * interval '1 ms' THEN
    said := set_config('idle_in_transaction_session_timeout', idle_ms || 'ms', true);
  END IF;
  said := current_setting('statement_timeout');
  IF said = '0' OR said::interval > total_ms * interval '1 ms' THEN
    said := set_config('statement_timeout', total_ms || 'ms', true);
  END IF;
  said := current_setting('transaction_timeout', true);
  IF said = '0' OR said::interval > total_ms * interval '1 ms' THEN
    said := set_config('transaction_timeout', total_ms || 'ms', true);
  END IF;
  IF place > 0 THEN                                      -- against a grant that leaves no room for others
    PERFORM FROM pglock.leases x WHERE x.name = lock AND x.slot = 0 FOR KEY SHARE;
  END IF;
  -- Waits for a later grant that is being made. Its row has another token then, or the same one if it came to nothing.
  SELECT x.expires_at, x.token INTO until, last_token FROM pglock.leases x
    WHERE x.name = lock AND x.slot = place AND x.token = tok FOR KEY SHARE;
  IF FOUND AND clock_timestamp() < until THEN
    verdict := 'held';
    said := set_config('fencedlock.grant', pglock.stated_grant(lock, place, tok), true);
  ELSIF FOUND AND current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
    RAISE EXCEPTION 'the lease may have been renewed since this transaction began' USING ERRCODE = 'serialization_failure';
  ELSIF FOUND THEN verdict := 'expired';
  ELSIF NOT pglock.fence_credible(lock, place, tok) THEN verdict := 'never_granted';
  ELSE
    SELECT x.token INTO last_token FROM pglock.leases x WHERE x.name = lock AND x.slot = place AND x.token > 0;
    IF last_token < tok AND current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
      RAISE EXCEPTION 'the lock may have been granted since this transaction began' USING ERRCODE = 'serialization_failure';
    END IF;
    verdict := CASE WHEN last_token IS NOT NULL THEN 'stale' ELSE 'elsewhere' END;
  END IF;
END $$;

-- fence_raise and fence_check as they travel with BEGIN, which cannot wait for an answer: what is refused is the error FL000. They are
-- procedures since a CALL is neither planned nor has a result, which saves a sixth of what the SELECT costs. What the transactions of
-- a grant do again and again comes first, in few expressions: PostgreSQL prepares each one anew in each transaction.

-- Also for several resources. They are one argument: PostgreSQL takes a hundred at most.
CREATE PROCEDURE pglock.fence_begin_raised(lock text, place int, tok bigint, resources text[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE r record;
BEGIN
  IF cardinality(resources) = 1 THEN
    PERFORM FROM pglock.fences x WHERE x.relation = 0::oid AND x.resource = resources[1] AND x.name = lock AND x.slot = place
      AND x.last_token = tok AND NOT EXISTS (SELECT FROM pglock.leases l WHERE l.name = lock AND l.slot = place AND l.token > tok) FOR SHARE OF x;
    IF FOUND AND set_config('fencedlock.grant', pglock.stated_grant(lock, place, tok), true) <> '' THEN RETURN; END IF;
  END IF;
  r := pglock.fence_raise_all(resources, lock, place, tok);
  IF (r.verdict IN ('raised', 'passed')) IS NOT TRUE THEN
    RAISE EXCEPTION '%: % token % of lock "%"', r.resource, r.verdict, tok, lock USING ERRCODE = 'FL000';
  END IF;
END $$;

CREATE PROCEDURE pglock.fence_begin_held(lock text, place int, tok bigint, idle_ms int, total_ms int)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
  until timestamptz;
  verdict text;
BEGIN
  -- A lock that is held alone, in a session without limits of its own.
  IF place = 0 AND current_setting('idle_in_transaction_session_timeout') = '0' AND current_setting('statement_timeout') = '0'
    AND coalesce(current_setting('transaction_timeout', true), '0') = '0'
  THEN
    SELECT x.expires_at INTO until FROM pglock.leases x WHERE x.name = lock AND x.slot = 0 AND x.token = tok FOR KEY SHARE;
    IF clock_timestamp() < until AND concat(set_config('idle_in_transaction_session_timeout', idle_ms::text, true),
      set_config('statement_timeout', total_ms::text, true),
      CASE WHEN current_setting('transaction_timeout', true) = '0' THEN set_config('transaction_timeout', total_ms::text, true) END,
      set_config('fencedlock.grant', pglock.stated_grant(lock, place, tok), true)) <> ''
    THEN RETURN; END IF;
  END IF;
  verdict := (pglock.fence_check(lock, place, tok, idle_ms, total_ms)).verdict;
  IF verdict <> 'held' THEN
    RAISE EXCEPTION '% token % of lock "%"', verdict, tok, lock USING ERRCODE = 'FL000';
  END IF;
END $$;

-- Where the tombstone of a row belongs. The hash follows the equality of the key's types (1.0 and 1.00, citext), whatever the
-- session prints them like. It is of 128 bits, and where two keys met the later one's insert would be refused, nothing worse.
CREATE FUNCTION pglock.fence_row_id(INOUT rel regclass, key record, OUT id text) LANGUAGE plpgsql AS $$
BEGIN
  IF (rel <> 0::oid AND key IS NOT NULL) IS NOT TRUE THEN
    RAISE EXCEPTION 'a fenced row has a table, and a key without NULLs' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  rel := coalesce(pg_partition_root(rel), rel);
  id := hash_record_extended(key, 0)::text || '.' || hash_record_extended(key, 1)::text;
END $$;

-- The token that has deleted a row, 0 if none has. Volatile: it sees what was committed while the caller's statement waited.
CREATE FUNCTION pglock.fence_row_tombstone(rel regclass, key record) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE r record := pglock.fence_row_id(rel, key);
BEGIN
  RETURN coalesce((SELECT f.last_token FROM pglock.fences f WHERE f.relation = r.rel AND f.resource = r.id), 0);
END $$;

-- Locks the key of a row that may not exist, to the end of the transaction, and answers as fence_row_tombstone does, or as
-- fence_forgotten where there is none; NULL if the token was never granted. An insert and a delete of one key take it before they touch the table.
-- Where there is no tombstone, one is written and taken back: until this transaction ends, the unique index makes others wait
-- who write there, and at every isolation level it finds a tombstone that the snapshot does not show.
CREATE FUNCTION pglock.fence_row_lock(rel regclass, key record, lock text, place int, tok bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
  r record := pglock.fence_row_id(rel, key);
  last bigint;
BEGIN
  IF NOT pglock.fence_credible(lock, place, tok) THEN RETURN NULL; END IF;
  LOOP
    SELECT f.last_token INTO last FROM pglock.fences f WHERE f.relation = r.rel AND f.resource = r.id FOR UPDATE;
    IF FOUND THEN RETURN last; END IF;
    INSERT INTO pglock.fences (relation, resource, name, slot, last_token) VALUES (r.rel, r.id, lock, place, 0)
      ON CONFLICT DO NOTHING;
    IF FOUND THEN
      DELETE FROM pglock.fences f WHERE f.relation = r.rel AND f.resource = r.id;
      RETURN pglock.fence_forgotten(tok);
    END IF;
  END LOOP;
END $$;

-- What a fenced delete leaves behind. Under fence_row_lock.
CREATE FUNCTION pglock.fence_row_bury(rel regclass, key record, lock text, place int, tok bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE r record := pglock.fence_row_id(rel, key);
BEGIN
  IF NOT pglock.fence_credible(lock, place, tok) THEN RETURN false; END IF;
  INSERT INTO pglock.fences AS f (relation, resource, name, slot, last_token) VALUES (r.rel, r.id, lock, place, tok)
    ON CONFLICT (relation, resource) DO UPDATE SET name = excluded.name, slot = excluded.slot,
      last_token = excluded.last_token, raised_at = excluded.raised_at WHERE f.last_token < excluded.last_token;
  RETURN true;
END $$;

-- What a fenced insert clears away: the row carries the token again. Under fence_row_lock. stored is the key as it came to
-- stand in the table: where that is another one (rounded, or changed by a trigger), the wrong key was locked.
CREATE FUNCTION pglock.fence_row_revive(rel regclass, key record, stored record, lock text, place int, tok bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE r record := pglock.fence_row_id(rel, key);
BEGIN
  IF (pglock.fence_row_id(rel, stored)).id <> r.id THEN
    RAISE EXCEPTION 'the key % was stored as %', key, stored USING ERRCODE = 'invalid_parameter_value',
      HINT = 'A fenced row is found by its key: pass it as the column stores it.';
  ELSIF NOT pglock.fence_credible(lock, place, tok) THEN RETURN false;
  END IF;
  DELETE FROM pglock.fences f WHERE f.relation = r.rel AND f.resource = r.id AND f.last_token <= tok;
  RETURN true;
END $$;

-- Owner only: forgets up to most fences that were raised so long ago: named resources, tombstones, and those of the keys of protected
-- tables. Never a token that a live grant does not exceed, nor one that the next grant might not, and never younger than the cap: earlier
-- tokens are then refused wherever there is no fence, and all that are live go on. A lease counts as live for a TTL more, from before
-- the look: a renewal, which only a live one has, may be on its way. A grant that is not committed yet is over, or was drawn after
-- every fence of the cap's age was raised. A grant that was lost in a failover cannot be seen, and so nothing is forgotten
-- while new ones are held back; nor while somebody reads at repeatable read what is changed here. The locks must live in this
-- database, since tokens of another say nothing about those that live here.
CREATE FUNCTION pglock.prune_fences(idle interval, most int) RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  began timestamptz := clock_timestamp();
  before timestamptz := began - greatest(idle, (SELECT cap_us FROM pglock.guard) * interval '1 us');
  live bigint;
  top bigint;
  gone bigint;
BEGIN
  PERFORM pglock.need_read_committed();
  PERFORM FROM pglock.fences x WHERE x.relation = 0::oid AND x.resource = '' FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND OR NOT EXISTS (SELECT FROM pglock.guard_now g WHERE NOT g.other AND g.no_grants_before <= clock_timestamp()) THEN RETURN 0; END IF;
  SELECT least(min(x.token), pg_sequence_last_value('pglock.fencing_token')) INTO live FROM pglock.leases x WHERE x.expires_at + x.ttl > began;
  WITH gone AS (
    DELETE FROM pglock.fences f USING (
      SELECT x.ctid AS at FROM pglock.fences x
        WHERE x.raised_at < before AND x.last_token < live AND x.resource <> '' AND (x.relation = 0::oid OR x.resource <> 'table')
        LIMIT most FOR UPDATE SKIP LOCKED) x
      WHERE f.ctid = x.at RETURNING f.last_token)         -- not by its key: each chunk would read the whole table for that
    SELECT max(g.last_token), count(*) INTO top, gone FROM gone g;
  UPDATE pglock.fences x SET last_token = top + 1, raised_at = clock_timestamp() WHERE x.relation = 0::oid AND x.resource = '' AND x.last_token <= top;
  RETURN gone;
END $$;
COMMENT ON FUNCTION pglock.prune_fences IS 'Forgets up to so many fences that were raised so long ago; answers how many. Owner only.';

-- Takes a statement back that could write some of its rows only: others were changed while it waited, which a later snapshot
-- shows, or the same key stood twice in it, or a trigger, a rule or row security hides rows from it.
CREATE FUNCTION pglock.fence_whole(written bigint, matched bigint, wanted bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF written = 0 THEN RETURN false;
  ELSIF written = wanted AND matched = wanted THEN RETURN true;
  END IF;
  RAISE EXCEPTION '% of % rows would be written', least(written, matched), wanted USING ERRCODE = 'serialization_failure',
    HINT = 'Try again. If it stays so, a key stands twice, is stored as another one, or a trigger, a rule or row security hides rows.';
END $$;

-- Takes a write back whose row came to stand under another key or token than was meant, given with the key first: the next one
-- would not be compared with it.
CREATE FUNCTION pglock.fence_kept(meant record, stored record) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION 'a trigger has changed the key or the token: % was stored as %', meant, stored
    USING ERRCODE = 'invalid_parameter_value';
END $$;
