-- Once per occurrence: a record for each instant at which a job was due, made before the job runs and closed when it has.
--
-- The rules that every function keeps:
--   * An occurrence is run under a lock of its own, whose name is derived here and nowhere else in the database.
--   * A record is begun only by whoever holds that lock, and closed only by the grant that has begun it: its token is compared
--     in the statement that writes. So whoever was paused for too long can change nothing that came later.
--   * Instants are whole microseconds of UTC, and come as numbers: no time zone and no DateStyle can change them.

CREATE TABLE pglock.occurrences (
  job        text COLLATE "C" NOT NULL,                  -- 1 to 200 bytes
  due        timestamptz NOT NULL,                       -- when it was to run, by its schedule: no clock has a say in it
  lock       text COLLATE "C" NOT NULL,                  -- under which it runs
  token      bigint NOT NULL,                            -- of the latest attempt's grant
  attempt    int NOT NULL DEFAULT 1,
  owner      text NOT NULL,                              -- of that grant: a label for people
  started_at timestamptz NOT NULL,
  ended_at   timestamptz,                                -- NULL: it runs, or its runner has vanished
  outcome    text NOT NULL DEFAULT 'started',            -- then done or failed
  detail     text NOT NULL DEFAULT '',                   -- what it failed with
  PRIMARY KEY (job, due)
);

-- The instant and the lock of an occurrence. The lock's name begins with a word that is no schema's, so that it is the same in
-- all of them, and with an instant of one length, so that no two occurrences have the same.
CREATE FUNCTION pglock.occurrence(work text, due_us bigint, OUT due timestamptz, OUT lock text) LANGUAGE plpgsql AS $$
BEGIN
  IF (octet_length(work) BETWEEN 1 AND 200 AND due_us BETWEEN -62135596800000000 AND 253402300799999999) IS NOT TRUE THEN
    RAISE EXCEPTION 'not an occurrence: job "%", % us', work, due_us USING ERRCODE = 'invalid_parameter_value';
  END IF;
  -- Seconds and the rest apart: an interval is multiplied in floating point.
  due := timestamptz '1970-01-01 00:00:00+00' + due_us / 1000000 * interval '1 s' + due_us % 1000000 * interval '1 us';
  lock := 'fencedlock.once/' || to_char(due AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') || '/' || work;
END $$;

-- What became of each occurrence. One that was begun and not closed runs for as long as its lease lives.
CREATE VIEW pglock.once AS
  SELECT o.job, o.due, CASE WHEN o.ended_at IS NOT NULL THEN o.outcome
           WHEN EXISTS (SELECT FROM pglock.leases l WHERE l.name = o.lock AND l.slot = 0 AND l.token = o.token AND l.expires_at > clock_timestamp())
           THEN 'running' ELSE 'unfinished' END AS outcome,
         o.attempt, o.owner, o.token, o.started_at, o.ended_at, o.detail, o.lock
  FROM pglock.occurrences o;

-- Begins an occurrence. It is on the disk before the caller is told.
--   started  also the answer to a retry of the same call
--   over     another attempt was first: see once_records. With again, only one that is done
--   lost     the grant is not the one that holds the occurrence's lock
--   elsewhere  nobody was ever granted that lock here: the locks are in another database
-- The lock on the lease keeps a later grant away until this has committed, and the key makes attempts meet.
CREATE FUNCTION pglock.once_start(work text, due_us bigint, tok bigint, again boolean) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
  o record := pglock.occurrence(work, due_us);
  until timestamptz;
  who text;
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN PERFORM set_config('synchronous_commit', 'local', true); END IF;
  SELECT x.expires_at, x.owner INTO until, who FROM pglock.leases x WHERE x.name = o.lock AND x.slot = 0 AND x.token = tok FOR KEY SHARE;
  IF NOT FOUND AND NOT EXISTS (SELECT FROM pglock.leases x WHERE x.name = o.lock AND x.slot = 0) THEN RETURN 'elsewhere'; END IF;
  IF until IS NULL OR until <= clock_timestamp() THEN RETURN 'lost'; END IF;
  INSERT INTO pglock.occurrences AS x (job, due, lock, token, owner, started_at) VALUES (work, o.due, o.lock, tok, who, clock_timestamp())
    ON CONFLICT (job, due) DO UPDATE SET token = tok, attempt = x.attempt + 1, owner = who, started_at = clock_timestamp(), ended_at = NULL,
      outcome = 'started', detail = ''
      WHERE again AND x.outcome <> 'done' AND x.token < tok;
  IF NOT FOUND THEN
    PERFORM FROM pglock.occurrences x WHERE x.job = work AND x.due = o.due AND x.token = tok AND x.ended_at IS NULL;
  END IF;
  RETURN CASE WHEN FOUND THEN 'started' ELSE 'over' END;
END $$;

-- Closes what a grant has begun, done or failed, and answers what is on record for it then: a second call changes nothing. The
-- grant's lease may be over, as long as nobody has begun anew.
--   stale    a later attempt has begun: last_token
--   gone     the record was pruned
-- In the transaction of the job's own writes it counts if that commits; and whoever asks meanwhile waits for that, and is told.
-- The row is locked where nothing is changed, too, so that there is a commit, which waits for a synchronous standby: that of the
-- call before may have waited in vain, and be on this server alone.
CREATE FUNCTION pglock.once_end(work text, due_us bigint, tok bigint, how text, why text, OUT verdict text, OUT last_token bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE o record := pglock.occurrence(work, due_us);
BEGIN
  IF (how IN ('done', 'failed') AND octet_length(why) <= 4096) IS NOT TRUE THEN
    RAISE EXCEPTION 'an occurrence ends done or failed, with 4096 bytes of detail at most' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF current_setting('synchronous_commit') = 'off' THEN -- in the transaction of the job, too: who is told that it is done asks no more
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  UPDATE pglock.occurrences x SET outcome = how, detail = why, ended_at = clock_timestamp()
    WHERE x.job = work AND x.due = o.due AND x.token = tok AND x.ended_at IS NULL;
  SELECT CASE WHEN x.token = tok THEN x.outcome ELSE 'stale' END, x.token INTO verdict, last_token
    FROM pglock.occurrences x WHERE x.job = work AND x.due = o.due FOR KEY SHARE;
  IF NOT FOUND THEN verdict := 'gone'; END IF;
END $$;

-- What is on record of a job, the latest occurrence first, or of one occurrence.
CREATE FUNCTION pglock.once_records(work text, due_us bigint DEFAULT NULL, most int DEFAULT 1) RETURNS SETOF pglock.once
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE o record;
BEGIN
  IF due_us IS NULL THEN
    RETURN QUERY SELECT v.* FROM pglock.once v WHERE v.job = work ORDER BY v.due DESC LIMIT most;
  ELSE
    o := pglock.occurrence(work, due_us);
    RETURN QUERY SELECT v.* FROM pglock.once v WHERE v.job = work AND v.due = o.due;
  END IF;
END $$;

-- Owner only, since what is forgotten can be run again: forgets up to most occurrences that were due, and are over, for so long,
-- with their locks, and answers how many. Never younger than the cap, and none that runs. Tokens go on rising, as after prune.
CREATE FUNCTION pglock.once_prune(age interval, most int) RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  before timestamptz := clock_timestamp() - greatest(age, (SELECT cap_us FROM pglock.guard) * interval '1 us');
  top bigint;
  gone bigint;
BEGIN
  WITH gone AS (
    DELETE FROM pglock.occurrences o USING (
      SELECT x.ctid AS at FROM pglock.occurrences x WHERE greatest(x.due, x.started_at, x.ended_at) < before
          AND NOT EXISTS (SELECT FROM pglock.leases l WHERE l.name = x.lock AND l.slot = 0 AND greatest(l.granted_at, l.expires_at + l.delay, l.not_before) >= before)
        LIMIT most FOR UPDATE SKIP LOCKED) x
      WHERE o.ctid = x.at RETURNING o.lock),             -- not by its key: each chunk would read the whole table for that
  locks AS (
    DELETE FROM pglock.leases l USING (
      SELECT x.name FROM pglock.leases x JOIN gone g ON x.name = g.lock WHERE x.slot = 0 AND x.permits = 0 AND greatest(x.granted_at, x.expires_at + x.delay, x.not_before) < before
        FOR UPDATE OF x SKIP LOCKED) x
      WHERE l.name = x.name AND l.slot = 0 RETURNING l.token)
    SELECT (SELECT count(*) FROM gone), (SELECT max(l.token) FROM locks l) INTO gone, top;
  IF top > pg_sequence_last_value('pglock.fencing_token') THEN PERFORM pglock.move_token(top, false); END IF;
  RETURN gone;
END $$;
