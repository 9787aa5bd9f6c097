-- The lock protocol: a lease table, a sequence of fencing tokens, a guard against restarts and failovers, and one function
-- for each verb. Written for schema pglock; runs as it is with psql -1 -v ON_ERROR_STOP=1 -f.
--
-- The rules that every function keeps:
--   * Only clock_timestamp() is read, after the row it is compared with has been locked: any other clock stands still while
--     a statement waits.
--   * Nothing waits for a lock on a row: a row that somebody has locked is "ask again", never a queue. (A row that was
--     inserted by hand and is not committed yet makes a call wait, for its lock_timeout.)
--   * A token is drawn under the lock of the row that it goes into, never before.
-- What takes arrays is planned once: with a few elements PostgreSQL would take a plan for just these to be cheaper, and make one
-- in each call, which costs more than the call.

DO $$ BEGIN
  IF to_regnamespace('pglock') IS NULL THEN  -- IF NOT EXISTS would need the right to create
    CREATE SCHEMA pglock;
    COMMENT ON SCHEMA pglock IS 'made by fencedlock';  -- so the down file may drop it
  END IF;
END $$;

-- Which of these files were applied, and the text of each: kept by migrations.Up, in the transaction of the file itself.
CREATE TABLE pglock.migrations (
  version    bigint PRIMARY KEY,
  sha256     text NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Tokens stay below 2^53, so that every language can hold one. They begin at the clock: a schema that is dropped and made
-- anew must not hand out the tokens of the old one again.
CREATE SEQUENCE pglock.fencing_token AS bigint MAXVALUE 9007199254740991 CACHE 1 NO CYCLE;
SELECT setval('pglock.fencing_token', floor(extract(epoch FROM clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint);

-- One row for each name and slot. Slot 0 is the mutex; where several may hold a name at once, each has one of the others, and
-- slot 0 is what every grant of the name locks first (see 0005_kinds). Rows are freed by update and kept, so that tokens of a name rise.
-- No CHECK constraints: PostgreSQL parses each anew in every UPDATE statement, and only the functions below write here.
-- No index on the instants, and room in every page: renewals stay HOT.
CREATE TABLE pglock.leases (
  name        text COLLATE "C" NOT NULL,             -- 1 to 255 bytes
  slot        int NOT NULL DEFAULT 0,
  token       bigint NOT NULL DEFAULT 0,             -- of the latest grant; 0: never granted
  acquisition uuid,                                  -- of the latest grant: the holder's credential, shown to nobody. It stays
                                                     -- after the release, so that a late duplicate of its grant is refused
  revoked     uuid,                                  -- what revoke took from its holder: the acquisition. It stays until the next grant
  owner       text NOT NULL DEFAULT '',              -- a label for people; decides nothing
  granted_at  timestamptz NOT NULL DEFAULT 'epoch',
  expires_at  timestamptz NOT NULL DEFAULT 'epoch',  -- the end of what the holder may trust; epoch: released
  not_before  timestamptz NOT NULL DEFAULT 'epoch',  -- nobody is granted it before, released or not
  ttl         interval NOT NULL DEFAULT '0',
  delay       interval NOT NULL DEFAULT '0',         -- nobody is granted it for so long after expires_at, unless it was released
  metadata    jsonb,
  permits     int NOT NULL DEFAULT 0,                -- of slot 0, what the name is: 0 a mutex, -1 a mutex that readers share, n a
                                                     -- semaphore of n permits, in the slots 1 to n
  PRIMARY KEY (name, slot)
) WITH (fillfactor = 50);

-- One row: the identity of the server that granted last. A promoted standby, a restored copy or a restarted server differs,
-- and may have lost the last grants while their holders still trust them.
CREATE TABLE pglock.guard (
  one               boolean PRIMARY KEY DEFAULT true CHECK (one),
  started           timestamptz NOT NULL,                -- pg_postmaster_start_time()
  database          oid NOT NULL,                        -- a copy of the database inside one server has other oids
  leases            oid NOT NULL,
  system_identifier bigint,                              -- with the timeline, what tells a plain restart from the rest;
  timeline          text,                                -- NULL where the server does not say
  single_node       boolean NOT NULL DEFAULT false,      -- declared: no standby, no snapshot, no failover
  cap_us            bigint NOT NULL DEFAULT 30000000 CHECK (cap_us BETWEEN 100000 AND 86400000000),
  no_grants_before  timestamptz NOT NULL DEFAULT 'epoch',
  reason            text NOT NULL DEFAULT '',            -- of that, for people
  bumps             bigint NOT NULL DEFAULT 0
);

-- The identity of this server beyond its start time. The name of the WAL file is right at once after a promotion, which
-- pg_control_checkpoint() is not. checkpointed is when the latest checkpoint began, at the latest: it is told in whole seconds.
-- That is before this start only after an orderly shutdown, which ends with one: a crash is followed by one, and a promotion
-- by another timeline. Managed servers may refuse any of it: then nothing is known, and the longer hold applies.
CREATE FUNCTION pglock.lineage(OUT system_identifier bigint, OUT timeline text, OUT checkpointed timestamptz) LANGUAGE plpgsql AS $$
BEGIN
  SELECT c.system_identifier INTO system_identifier FROM pg_control_system() c;
  timeline := left(pg_walfile_name(pg_current_wal_lsn()), 8);
  SELECT c.checkpoint_time + interval '1 s' INTO checkpointed FROM pg_control_checkpoint() c;
EXCEPTION WHEN object_not_in_prerequisite_state OR insufficient_privilege OR feature_not_supported THEN NULL;
END $$;

INSERT INTO pglock.guard (started, database, leases, system_identifier, timeline)
  SELECT pg_postmaster_start_time(), d.oid, 'pglock.leases'::regclass, l.system_identifier, l.timeline
  FROM pg_database d, pglock.lineage() l WHERE d.datname = current_database();

-- The guard beside what is true now.
--   other: this is not the server that granted last (a standby never is, so it never answers "held" either).
--   ready: this transaction may grant (see need_read_committed). An acknowledged grant survives a crash: never with
--          synchronous_commit off.
CREATE VIEW pglock.guard_now AS
  SELECT g.*, d.oid AS database_now, coalesce(pg_sequence_last_value('pglock.fencing_token'), 0) AS last_token,
         g.started <> pg_postmaster_start_time() OR g.database <> d.oid OR g.leases <> 'pglock.leases'::regclass AS other,
         g.no_grants_before <= clock_timestamp() AND current_setting('transaction_isolation') = 'read committed'
           AND current_setting('transaction_read_only') = 'off' AND current_setting('synchronous_commit') <> 'off' AS ready
  FROM pglock.guard g, pg_database d WHERE g.one AND d.datname = current_database();

-- Moves the sequence and answers a token greater than above; with always = false only if it lags. Nothing else moves it.
-- Movers take one lock and read the sequence again under it. The step covers what others draw meanwhile, without the lock,
-- between nextval and setval. It stays small (a second in microseconds), so that a later failover's clock is beyond it.
CREATE FUNCTION pglock.move_token(above bigint, always boolean) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE t bigint;
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('pglock.fencing_token', 7251));
  t := nextval('pglock.fencing_token');
  IF t > above AND NOT always THEN RETURN t; END IF;
  RETURN setval('pglock.fencing_token', greatest(t, above) + 1048576);
END $$;

-- Makes this server the one that grants, if it is not: the sequence jumps, and new grants wait until every lease that may
-- have been lost has run out. Answers for how many microseconds (0: not at all). After a failover many call at once: one
-- does it, the others are told to ask again in 50 ms.
CREATE FUNCTION pglock.bump(seen bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  g pglock.guard_now;
  id record;
  same boolean;
  clock bigint := extract(epoch FROM clock_timestamp()) * 1000000;
  hold timestamptz;
BEGIN
  PERFORM FROM pglock.guard WHERE one FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN RETURN 50000; END IF;
  SELECT * INTO g FROM pglock.guard_now;                 -- once more, under the lock
  hold := g.no_grants_before;
  IF seen > clock + 86400000000 THEN seen := 0; END IF;  -- not credible, and obeying it would use the sequence up
  IF g.other OR seen > g.last_token THEN
    -- A renewal may stand behind this, so it waits for no standby. A bump that is lost is made again, and a standby that has a
    -- later grant has this too.
    PERFORM set_config('synchronous_commit', 'local', true);
    id := pglock.lineage();
    same := (g.database, g.leases, g.system_identifier, g.timeline)
      = (g.database_now, 'pglock.leases'::regclass::oid, id.system_identifier, id.timeline);
    g.reason := CASE WHEN seen > g.last_token THEN 'a client has seen a later token than this database has drawn: its last grants were lost'
      WHEN g.database <> g.database_now OR g.leases <> 'pglock.leases'::regclass THEN 'this database is a copy of the one that granted last'
      WHEN same THEN 'the server was restarted'
      WHEN id.timeline IS NULL THEN 'the server was restarted, or another has taken over'
      ELSE 'another server granted last: a failover, or a copy that was restored' END;
    hold := clock_timestamp();
    IF g.single_node AND same AND seen <= g.last_token THEN
      -- A plain restart of the only server: what was granted, was granted before it started, and before it was shut down.
      hold := least(hold, pg_postmaster_start_time(), id.checkpointed);
    END IF;
    hold := hold + g.cap_us * interval '1 us';
    PERFORM pglock.move_token(greatest(clock - 1048576, seen), true);
    UPDATE pglock.guard SET started = pg_postmaster_start_time(), database = g.database_now, leases = 'pglock.leases'::regclass,
      system_identifier = id.system_identifier, timeline = id.timeline,
      no_grants_before = greatest(no_grants_before, hold), reason = g.reason, bumps = bumps + 1
      WHERE one RETURNING no_grants_before INTO hold;
    -- No lease is trusted beyond now + its TTL, whatever a faster clock wrote. not_before is somebody's wish, and stays.
    UPDATE pglock.leases l SET expires_at = clock_timestamp() + l.ttl
      FROM (SELECT name, slot FROM pglock.leases WHERE expires_at > clock_timestamp() + ttl FOR NO KEY UPDATE SKIP LOCKED) x
      WHERE l.name = x.name AND l.slot = x.slot;
  END IF;
  RETURN greatest(extract(epoch FROM hold - clock_timestamp()) * 1000000, 0);
END $$;

-- A later look must see more than an earlier one, and serialization failures must not reach callers: every verb refuses what
-- is not read committed.
CREATE FUNCTION pglock.need_read_committed() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'the lock functions need READ COMMITTED, this transaction is %', upper(current_setting('transaction_isolation'))
      USING ERRCODE = 'invalid_transaction_state', HINT = 'SET TRANSACTION ISOLATION LEVEL READ COMMITTED READ WRITE first.';
  END IF;
END $$;

-- Why this transaction may not grant: held_back (for hold_us, and for what reason), or stale; else it is made ready, and verdict
-- is NULL.
CREATE FUNCTION pglock.admit(seen bigint, OUT verdict text, OUT hold_us bigint, OUT reason text) LANGUAGE plpgsql AS $$
DECLARE g pglock.guard_now;
BEGIN
  SELECT * INTO STRICT g FROM pglock.guard_now;          -- no guard, no grants
  PERFORM pglock.need_read_committed();
  IF current_setting('transaction_read_only') = 'on' THEN
    RAISE EXCEPTION 'a standby or a read-only transaction cannot grant a lock' USING ERRCODE = 'read_only_sql_transaction';
  END IF;
  IF current_setting('synchronous_commit') = 'off' THEN PERFORM set_config('synchronous_commit', 'local', true); END IF;
  hold_us := greatest(extract(epoch FROM g.no_grants_before - clock_timestamp()) * 1000000, 0);
  IF g.other OR seen > g.last_token THEN
    hold_us := pglock.bump(seen);                        -- grants come with a later call, never with the bump
    verdict := CASE WHEN hold_us = 0 AND seen > pg_sequence_last_value('pglock.fencing_token') THEN 'stale' ELSE 'held_back' END;
  ELSIF hold_us > 0 THEN
    verdict := 'held_back';
  END IF;
  SELECT x.reason INTO reason FROM pglock.guard x WHERE x.one AND verdict = 'held_back'; -- what the bump has written
END $$;

-- What a client asks on every new connection, so that a hold begins as early as possible, and what it is told: the longest
-- TTL, how long new grants are held back and why, and whether this session was set up as it asked for (a pooler forgets).
CREATE FUNCTION pglock.check_in(seen bigint, OUT cap_us bigint, OUT hold_us bigint, OUT reason text, OUT isolation text, OUT statement_timeout text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
  SELECT a.hold_us, concat(a.reason), g.cap_us INTO hold_us, reason, cap_us FROM pglock.admit(seen) a, pglock.guard g WHERE g.one;
  isolation := current_setting('default_transaction_isolation');
  statement_timeout := current_setting('statement_timeout');
END $$;

-- Adds the vacant row of a name. Waits for nobody: whoever plants it holds the try-lock to the end of its transaction, and
-- the INSERT's snapshot is later than the lock, so it never meets another's uncommitted row. False: another is planting.
CREATE FUNCTION pglock.plant(lock text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF NOT pg_try_advisory_xact_lock(hashtextextended('pglock.leases', hashtextextended(lock, 7251))) THEN RETURN false; END IF;
  -- If only slot 0 was deleted by hand, somebody may hold another.
  INSERT INTO pglock.leases (name, permits) VALUES (lock, CASE WHEN EXISTS (SELECT FROM pglock.leases x WHERE x.name = lock) THEN -1 ELSE 0 END)
    ON CONFLICT DO NOTHING;
  RETURN true;
END $$;

-- Grants locks. One answer for each input:
--   granted       token; remaining_us of the TTL. Also the answer to a retry of the same acquisition while it lives, and to
--                 the first asking for one that a release has granted: that is a pure read
--   held          token, owner, since, remaining_us of who is in the way; nothing was written
--   kept          the same of who was the last: nobody holds it, and it is kept from others for remaining_us
--   other_kind    the same of who holds it as what it is: slot says what that is, as kinds does
--   spared        not granted, since another of the same lot was not
--   marked, marked_kept   held or kept, and the wait is marked: see mark
--   retry         free, but another has the row locked just now: ask again soon
--   spent         this acquisition was granted before, and is over or revoked: take a new id
--   held_back     nothing is granted for remaining_us, after a restart or failover; owner says why, in words
--   stale         seen is a token that this database cannot have drawn, and too far ahead to follow
--   ttl_too_long  remaining_us is the longest allowed
--   invalid       the name, the id or the TTL
-- An acquisition is the id of one attempt, granted at most once. owner is for people. holds_us keeps the name from others for
-- so long after the grant, released or not; 366 days at most. metas are jsonb. seen is the latest token the caller ever got from
-- this database. delays_us keeps the name from others after the lease has run out, unless it is released; a day at most. kinds are as
-- leases.permits: 0 alone, -1 beside other readers, n as one of n. Neighbours with the same number in lots are granted all or
-- none, with one token, and all as the last of them says. client and waits are those of mark: where a number is there, a grant takes
-- the mark away, and a name that is held is marked, in the same call; heirs says which of them a release may grant, as marks have it.
CREATE FUNCTION pglock.acquire(names text[], acquisitions uuid[], label text, ttls_us bigint[], holds_us bigint[] DEFAULT NULL,
  metas text[] DEFAULT NULL, seen bigint DEFAULT 0, delays_us bigint[] DEFAULT NULL, kinds int[] DEFAULT NULL, lots int[] DEFAULT NULL,
  client uuid DEFAULT NULL, waits bigint[] DEFAULT NULL, heirs boolean[] DEFAULT NULL)
RETURNS TABLE (ord int, status text, token bigint, owner text, since timestamptz, remaining_us bigint, slot int)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE cap bigint; lock text; last bigint; first int := 1; waiting int[]; done boolean[];
BEGIN
  label := left(label, 1000);
  SELECT g.cap_us INTO cap FROM pglock.guard_now g WHERE g.ready AND NOT g.other AND seen <= g.last_token;
  IF NOT FOUND THEN
    SELECT a.verdict, a.hold_us, a.reason, g.cap_us INTO status, remaining_us, owner, cap FROM pglock.admit(seen) a, pglock.guard g WHERE g.one;
    IF status IS NOT NULL THEN
      FOR k IN 1..cardinality(names) LOOP ord := k; RETURN NEXT; END LOOP;
      RETURN;
    END IF;
  END IF;
  -- What is plainly free is granted at once, which costs a third of one by one. What is missed here is looked at below, one by one.
  -- LATERAL leaves one plan: a look into the index for each name. A join that was planned when there were few leases read them all
  -- when there were many.
  IF cardinality(names) > 1 THEN
    FOR ord, lock, token, last IN
      WITH free AS MATERIALIZED (
        SELECT r.*, x.*
          FROM unnest(names, acquisitions, ttls_us, holds_us, delays_us, metas) WITH ORDINALITY AS r(name, id, ttl_us, hold_us, delay_us, meta, ord),
            LATERAL (SELECT x.ctid AS at, x.token AS last FROM pglock.leases x WHERE x.name = r.name AND x.slot = 0 AND x.permits = 0
                AND greatest(x.expires_at + x.delay, x.not_before) <= clock_timestamp()
                AND x.acquisition IS DISTINCT FROM r.id AND x.revoked IS DISTINCT FROM r.id AND r.id IS NOT NULL AND r.ttl_us BETWEEN 100000 AND cap
              FOR UPDATE SKIP LOCKED) x
          WHERE (kinds[r.ord] <> 0 OR lots[r.ord] IN (lots[r.ord - 1], lots[r.ord + 1])) IS NOT TRUE),
      granted AS (
        UPDATE pglock.leases l SET token = nextval('pglock.fencing_token'), acquisition = f.id, owner = label, granted_at = clock_timestamp(),
          ttl = f.ttl_us * interval '1 us', expires_at = clock_timestamp() + f.ttl_us * interval '1 us',
          not_before = CASE WHEN f.hold_us > 0 THEN clock_timestamp() + least(f.hold_us, 31622400000000) * interval '1 us' ELSE 'epoch' END,
          delay = CASE WHEN f.delay_us > 0 THEN least(f.delay_us, 86400000000) * interval '1 us' ELSE '0' END,
          metadata = f.meta::jsonb, revoked = NULL
          FROM free f WHERE l.ctid = f.at
          RETURNING f.ord, f.name, l.token, f.last)
      SELECT g.* FROM granted g
    LOOP
      IF token <= last THEN                              -- a sequence that fell behind is moved, not obeyed
        token := pglock.move_token(last, false);
        UPDATE pglock.leases x SET token = acquire.token WHERE x.name = lock AND x.slot = 0;
      END IF;
      status := 'granted'; owner := label; since := clock_timestamp(); remaining_us := ttls_us[ord]; slot := 0;
      IF waits[ord] > 0 THEN PERFORM pglock.wait_over(lock, client); END IF;
      done[ord] := true;
      RETURN NEXT;
    END LOOP;
  END IF;
  FOR k IN 1..cardinality(names) LOOP
    CONTINUE WHEN lots[k] = lots[k + 1];
    IF done[k] THEN first := k + 1; CONTINUE; END IF;
    ord := k; slot := 0;
    WHILE first = k AND kinds[k] <> 0 IS NOT TRUE LOOP
      -- The inner SELECT locks the row if it is free; only then is the token drawn. FOR UPDATE, or it would pass by the
      -- KEY SHARE of a transaction that is protected by the lease.
      UPDATE pglock.leases l SET token = nextval('pglock.fencing_token'), acquisition = acquisitions[k], owner = label,
        granted_at = clock_timestamp(), ttl = least(ttls_us[k], cap) * interval '1 us',
        expires_at = clock_timestamp() + least(ttls_us[k], cap) * interval '1 us',
        not_before = CASE WHEN holds_us[k] > 0 THEN clock_timestamp() + least(holds_us[k], 31622400000000) * interval '1 us'
          ELSE 'epoch' END,
        delay = CASE WHEN delays_us[k] > 0 THEN least(delays_us[k], 86400000000) * interval '1 us' ELSE '0' END,
        metadata = metas[k]::jsonb, revoked = NULL
        FROM (SELECT x.ctid AS at, x.token FROM pglock.leases x WHERE x.name = names[k] AND x.slot = 0 AND x.permits = 0
                AND greatest(x.expires_at + x.delay, x.not_before) <= clock_timestamp()
                AND x.acquisition IS DISTINCT FROM acquisitions[k] AND x.revoked IS DISTINCT FROM acquisitions[k] AND acquisitions[k] IS NOT NULL
                AND ttls_us[k] BETWEEN 100000 AND cap
              FOR UPDATE SKIP LOCKED) free
        WHERE l.ctid = free.at
        RETURNING l.token, free.token INTO token, last;
      IF FOUND THEN
        IF token <= last THEN                            -- a sequence that fell behind is moved, not obeyed
          token := pglock.move_token(last, false);
          UPDATE pglock.leases x SET token = acquire.token WHERE x.name = names[k] AND x.slot = 0;
        END IF;
        status := 'granted'; owner := label; since := clock_timestamp(); remaining_us := ttls_us[k];
        EXIT;
      END IF;
      SELECT CASE WHEN (acquisitions[k] IS NOT NULL AND ttls_us[k] >= 100000) IS NOT TRUE THEN 'invalid'
                  WHEN x.acquisition = acquisitions[k] THEN CASE WHEN x.expires_at > clock_timestamp() THEN 'granted' ELSE 'spent' END
                  WHEN x.revoked = acquisitions[k] THEN 'spent'
                  WHEN ttls_us[k] > cap THEN 'ttl_too_long'
                  WHEN x.permits <> 0 THEN 'slots'
                  WHEN x.expires_at > clock_timestamp() THEN 'held'
                  WHEN greatest(x.expires_at + x.delay, x.not_before) > clock_timestamp() THEN 'kept' ELSE 'retry' END,
             x.token, x.owner, x.granted_at, greatest(extract(epoch FROM CASE WHEN x.acquisition = acquisitions[k] THEN x.expires_at
               ELSE greatest(x.expires_at + x.delay, x.not_before) END - clock_timestamp()) * 1000000, 0)
        INTO status, token, owner, since, remaining_us
        FROM pglock.leases x WHERE x.name = names[k] AND x.slot = 0;
      EXIT WHEN FOUND;
      token := 0; owner := ''; since := NULL; remaining_us := 0;
      status := CASE WHEN (octet_length(names[k]) BETWEEN 1 AND 255 AND acquisitions[k] IS NOT NULL
                           AND ttls_us[k] >= 100000) IS NOT TRUE THEN 'invalid'
                     WHEN ttls_us[k] > cap THEN 'ttl_too_long' ELSE 'retry' END;
      EXIT WHEN status <> 'retry' OR NOT pglock.plant(names[k]);
    END LOOP;
    IF first < k THEN
      RETURN QUERY SELECT first - 1 + a.ord, a.status, a.token, a.owner, a.since, a.remaining_us, a.slot FROM pglock.acquire_slots(names[first:k],
        acquisitions[k], label, ttls_us[k], holds_us[k], delays_us[k], metas[k], coalesce(kinds[k], 0), cap, client) a;
      first := k + 1;
      CONTINUE;
    END IF;
    first := k + 1;
    IF kinds[k] <> 0 OR status = 'slots' THEN
      SELECT a.status, a.token, a.owner, a.since, a.remaining_us, a.slot INTO status, token, owner, since, remaining_us, slot FROM pglock.acquire_slots(
        names[k:k], acquisitions[k], label, ttls_us[k], holds_us[k], delays_us[k], metas[k], coalesce(kinds[k], 0), cap, client) a;
    ELSIF status = 'ttl_too_long' THEN
      remaining_us := cap;
    END IF;
    IF waits[k] > 0 AND status IN ('held', 'kept', 'retry') THEN
      waiting := waiting || k;                           -- below: a mark need not be durable, and a grant must
      CONTINUE;
    ELSIF waits[k] > 0 AND status = 'granted' THEN
      PERFORM pglock.wait_over(names[k], client);
    END IF;
    RETURN NEXT;
  END LOOP;
  slot := 0;
  FOREACH ord IN ARRAY coalesce(waiting, '{}') LOOP
    SELECT m.status, m.token, m.owner, m.since, m.remaining_us INTO status, token, owner, since, remaining_us
      FROM pglock.mark(names[ord:ord], client, waits[ord:ord], ARRAY[false], kinds[ord:ord], CASE WHEN heirs[ord] THEN acquisitions[ord:ord] END, label,
        ttls_us[ord:ord]) m;
    RETURN NEXT;
  END LOOP;
END $$;

-- Extends grants by their TTL: renewed | locked (ask again; no loss) | expired | taken (a later grant exists) | revoked (see
-- revoke) | gone (the row was deleted). Only the very grant, and never a lapsed one. That all were renewed is one answer, with an ord of 0. Commits at
-- local: after a failover nothing new is granted until every renewal that was lost has run out, so a slow synchronous standby need not cost
-- anybody a lease.
CREATE FUNCTION pglock.renew(names text[], acquisitions uuid[], tokens bigint[], slots int[] DEFAULT NULL)
RETURNS TABLE (ord int, status text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE done int[]; places tid[]; written int; place int;
BEGIN
  PERFORM pglock.need_read_committed(), set_config('synchronous_commit', 'local', true);
  -- All of them at once, which costs a fifth of one by one: first locked, then written in the order of their places.
  -- OFFSET 0 keeps the look at the clock from coming before the lock.
  SELECT array_agg(m.ord), array_agg(m.at) INTO done, places
    FROM (SELECT r.ord, l.at, l.expires_at
            FROM unnest(names, acquisitions, tokens, slots) WITH ORDINALITY AS r(name, acquisition, token, slot, ord),
              LATERAL (SELECT l.ctid AS at, l.expires_at FROM pglock.leases l
                WHERE l.name = r.name AND l.slot = coalesce(r.slot, 0) AND l.acquisition = r.acquisition AND l.token = r.token
                FOR NO KEY UPDATE SKIP LOCKED) l
            OFFSET 0) m
    WHERE m.expires_at > clock_timestamp();
  UPDATE pglock.leases l SET expires_at = clock_timestamp() + l.ttl WHERE l.ctid = ANY (places);
  GET DIAGNOSTICS written = ROW_COUNT;
  IF written <> cardinality(done) THEN done := NULL; END IF; -- a trigger of somebody's was in the way: who knows of which
  status := 'renewed';
  IF cardinality(done) = cardinality(names) THEN
    ord := 0;
    RETURN NEXT;
    RETURN;
  END IF;
  RETURN QUERY SELECT d.ord, status FROM unnest(done) AS d(ord);
  FOR ord IN SELECT k FROM generate_series(1, cardinality(names)) k EXCEPT SELECT unnest(done) LOOP
    place := coalesce(slots[ord], 0);
    SELECT CASE WHEN x.token IS DISTINCT FROM tokens[ord] THEN 'taken' WHEN x.revoked = acquisitions[ord] THEN 'revoked'
                WHEN x.acquisition IS DISTINCT FROM acquisitions[ord] THEN 'taken'
                WHEN x.expires_at > clock_timestamp() THEN 'locked' ELSE 'expired' END
      INTO status FROM pglock.leases x WHERE x.name = names[ord] AND x.slot = place;
    IF NOT FOUND THEN status := 'gone'; END IF;
    RETURN NEXT;
  END LOOP;
END $$;

-- Ends grants: released | locked (send it again) | gone (it was over before). Touches nobody else's grant. deferred: the commit may
-- be lost in a crash, which costs others the rest of one TTL; it is refused by itself once the transaction has written.
-- unheld: nobody was told of the grant, so that what it was to be held at least is void. rouse: who waits for a name is woken, and
-- awaited is a second answer for it. The look for who waits comes after the row was locked, and slot 0 with it: see mark. Where somebody
-- waits to have the name alone, one release goes after the other: side by side, none would see that it is the last. A slot of -1 is
-- not known, and is found.
CREATE FUNCTION pglock.release(names text[], acquisitions uuid[], deferred boolean DEFAULT false, unheld boolean[] DEFAULT NULL,
  rouse boolean DEFAULT true, slots int[] DEFAULT NULL)
RETURNS TABLE (ord int, status text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE place int; alone boolean; done boolean[]; said text; durability text := current_setting('synchronous_commit');
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM pglock.need_read_committed(); END IF;
  IF deferred AND pg_current_xact_id_if_assigned() IS NULL THEN said := set_config('synchronous_commit', 'off', true); END IF;
  status := 'released';
  IF cardinality(names) > 1 THEN                         -- as in acquire
    FOR ord IN
      WITH mine AS MATERIALIZED (
        SELECT r.ord, r.unheld, x.at
          FROM unnest(names, acquisitions, unheld) WITH ORDINALITY AS r(name, id, unheld, ord),
            LATERAL (SELECT x.ctid AS at FROM pglock.leases x WHERE x.name = r.name AND x.slot = 0 AND x.acquisition = r.id AND x.expires_at > 'epoch'
              FOR NO KEY UPDATE SKIP LOCKED) x),
      released AS (
        UPDATE pglock.leases l SET expires_at = 'epoch', not_before = CASE WHEN m.unheld THEN 'epoch' ELSE l.not_before END
          FROM mine m WHERE l.ctid = m.at RETURNING m.ord)
      SELECT d.ord FROM released d
    LOOP
      done[ord] := true;
      RETURN NEXT;
    END LOOP;
  END IF;
  FOR k IN 1..cardinality(names) LOOP
    CONTINUE WHEN done[k];
    ord := k; status := 'released'; place := coalesce(slots[k], 0);
    IF place < 0 THEN
      SELECT x.slot INTO place FROM pglock.leases x WHERE x.name = names[k] AND x.acquisition = acquisitions[k];
    END IF;
    IF place > 0 THEN
      alone := EXISTS (SELECT FROM pglock.waits w WHERE w.name = names[k] AND w.kind = 0);
      IF alone THEN
        PERFORM FROM pglock.leases x WHERE x.name = names[k] AND x.slot = 0 FOR NO KEY UPDATE SKIP LOCKED;
      ELSE
        PERFORM FROM pglock.leases x WHERE x.name = names[k] AND x.slot = 0 FOR SHARE SKIP LOCKED;
      END IF;
      IF NOT FOUND AND EXISTS (SELECT FROM pglock.leases x WHERE x.name = names[k] AND x.slot = 0)
         OR NOT alone AND EXISTS (SELECT FROM pglock.waits w WHERE w.name = names[k] AND w.kind = 0) THEN
        status := 'locked';
        RETURN NEXT;
        CONTINUE;
      END IF;
    END IF;
    UPDATE pglock.leases l SET expires_at = 'epoch', not_before = CASE WHEN unheld[k] THEN 'epoch' ELSE l.not_before END
      FROM (SELECT FROM pglock.leases x WHERE x.name = names[k] AND x.slot = place AND x.acquisition = acquisitions[k]
              AND x.expires_at > 'epoch' FOR NO KEY UPDATE SKIP LOCKED) mine
      WHERE l.name = names[k] AND l.slot = place;        -- not by its place: a renewal may have replaced it just now
    IF NOT FOUND THEN
      PERFORM FROM pglock.leases x WHERE x.name = names[k] AND x.slot = place AND x.acquisition = acquisitions[k]
        AND x.expires_at > 'epoch';
      status := CASE WHEN FOUND THEN 'locked' ELSE 'gone' END;
    END IF;
    RETURN NEXT;
  END LOOP;
  IF rouse AND EXISTS (SELECT FROM pglock.waits w WHERE w.name = ANY (names)) THEN
    PERFORM pglock.wake(names, durability);
    RETURN QUERY SELECT r.ord::int, 'awaited' FROM unnest(names) WITH ORDINALITY AS r(name, ord)
      WHERE EXISTS (SELECT FROM pglock.waits w WHERE w.name = r.name AND w.until > clock_timestamp());
  END IF;
END $$;

-- Owner only: no later token is at or below n. Bounded, so that 2^51 tokens are left.
CREATE FUNCTION pglock.raise_token_floor(n bigint) RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF (n BETWEEN 0 AND 6755399441055744) IS NOT TRUE THEN
    RAISE EXCEPTION 'a token floor is between 0 and 6755399441055744' USING ERRCODE = 'numeric_value_out_of_range';
  END IF;
  RETURN pglock.move_token(n, true);
END $$;
COMMENT ON FUNCTION pglock.raise_token_floor IS 'Makes all later tokens greater than this one, where fences have seen later ones. Owner only.';

-- Owner only: allows longer TTLs. A standby that is promoted without the new cap would hold grants back for too short a time:
-- no client may use a longer TTL before every standby has replayed this. The cap is never lowered: leases with the old one
-- may live.
CREATE FUNCTION pglock.raise_cap(us bigint) RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE cap bigint;
BEGIN
  SELECT cap_us INTO STRICT cap FROM pglock.guard FOR UPDATE;
  IF (us BETWEEN cap AND 86400000000) IS NOT TRUE THEN
    RAISE EXCEPTION 'the cap is % s: it can be raised, to 24 h at most, and not lowered', trim_scale(cap / 1000000.0) USING ERRCODE = 'numeric_value_out_of_range';
  END IF;
  IF current_setting('synchronous_commit') = 'off' THEN PERFORM set_config('synchronous_commit', 'local', true); END IF;
  UPDATE pglock.guard SET cap_us = us WHERE cap_us <> us;
  RETURN us;
END $$;
COMMENT ON FUNCTION pglock.raise_cap IS 'Raises the longest TTL, in microseconds, for good. Use none before all standbys have it. Owner only.';

-- Owner only: says whether the server has no standby and is never restored from a copy. A restart then costs less waiting;
-- said wrongly, a lock can be granted twice.
CREATE FUNCTION pglock.declare_single_node(yes boolean) RETURNS void LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
  UPDATE pglock.guard SET single_node = yes WHERE single_node <> yes
$$;
COMMENT ON FUNCTION pglock.declare_single_node IS 'Says that there is no standby and no restore, so restarts cost less. Wrong, a lock is granted twice. Owner only.';

-- Owner only: ends a hold, for whoever knows that no grant was lost (a clean restart or switch-over).
CREATE FUNCTION pglock.end_hold() RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pglock.bump(0);                                -- the switch-over may not have been noticed yet
  UPDATE pglock.guard SET no_grants_before = 'epoch';
END $$;
COMMENT ON FUNCTION pglock.end_hold IS 'Ends the wait for new grants after a restart or switch-over that has lost none. Owner only.';

-- Owner only: forgets up to most names, and slots, that have been idle for so long, and answers how many. Never younger than the cap: a
-- late duplicate of a grant must still meet its id. The sequence is past every token that goes. Slot 0 stays while there are others:
-- they are looked for after it was locked, since a grant of a slot share-locks it.
CREATE FUNCTION pglock.prune(idle interval, most int) RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  before timestamptz := clock_timestamp() - greatest(idle, (SELECT cap_us FROM pglock.guard) * interval '1 us');
  idle_names text[];
  top bigint;
  gone bigint;
  names bigint;
BEGIN
  WITH gone AS (
    DELETE FROM pglock.leases l USING (
      SELECT x.ctid AS at FROM pglock.leases x WHERE x.slot > 0 AND greatest(x.granted_at, x.expires_at + x.delay, x.not_before) < before
        LIMIT most FOR UPDATE SKIP LOCKED) x
      WHERE l.ctid = x.at RETURNING l.token)             -- not by its key: each chunk would read the whole table for that
    SELECT max(g.token), count(*) INTO top, gone FROM gone g;
  SELECT array_agg(x.name), greatest(max(x.token), top) INTO idle_names, top FROM (
    SELECT x.name, x.token FROM pglock.leases x WHERE x.slot = 0 AND greatest(x.granted_at, x.expires_at + x.delay, x.not_before) < before
        AND NOT EXISTS (SELECT FROM pglock.leases o WHERE o.name = x.name AND o.slot > 0)
      LIMIT most FOR UPDATE SKIP LOCKED) x;
  DELETE FROM pglock.leases l WHERE l.name = ANY (idle_names) AND l.slot = 0
    AND NOT EXISTS (SELECT FROM pglock.leases o WHERE o.name = l.name AND o.slot > 0);
  GET DIAGNOSTICS names = ROW_COUNT;
  IF top > pg_sequence_last_value('pglock.fencing_token') THEN PERFORM pglock.move_token(top, false); END IF;
  DELETE FROM pglock.waits w WHERE w.until < before;     -- of processes that died
  RETURN gone + names;
END $$;
COMMENT ON FUNCTION pglock.prune IS 'Forgets up to so many locks that were idle for so long; answers how many. Owner only.';

-- For people: who holds, since when, for how much longer. A lease that is over shows its past holder; free_in is what is left
-- of not_before.
CREATE VIEW pglock.inspect AS
  SELECT name, slot, expires_at > now AS held, owner, token, granted_at, ttl, greatest(expires_at - now, '0') AS remaining,
         greatest(greatest(expires_at + delay, not_before) - now, '0') AS free_in, metadata
  FROM pglock.leases, (SELECT clock_timestamp() AS now) AS one_reading WHERE token > 0;

-- Who holds a lock, for all who use locks: what acquire tells whoever asks for one that is held, without asking for it. If several
-- do, the one whose lease lasts longest. Of a lock that nobody holds it tells nothing else.
CREATE FUNCTION pglock.holder(lock text, OUT held boolean, OUT owner text, OUT since timestamptz, OUT token bigint, OUT remaining interval)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
  SELECT true, x.owner, x.granted_at, x.token, x.expires_at - clock_timestamp() INTO held, owner, since, token, remaining
    FROM pglock.leases x WHERE x.name = lock AND x.expires_at > clock_timestamp() ORDER BY x.expires_at DESC LIMIT 1;
  held := FOUND;
  remaining := greatest(remaining, '0');  -- the clock goes on
END $$;
COMMENT ON FUNCTION pglock.holder IS 'Who holds a lock; of several, whose lease lasts longest.';
