-- Waiting: who waits for a lock that another process holds, so that a release can wake it. A mark is a hint and never truth: all
-- that losing one costs is time, since a waiter also asks by itself now and then. So the table is not logged, and marks are
-- written without waiting for the disk.
--
-- A waiter has one mark for each name and process, and a channel of its own to LISTEN on. A release takes the mark that is
-- oldest and notifies its channel: one is woken and not all. No mark, no NOTIFY, which would serialize commits.

--
-- A fair mark is a place in a queue as well: it stays until its owner takes it away, and whoever else waits fairly is told not to
-- ask before it. A waiter that was woken and does nothing loses its place after three seconds.

CREATE UNLOGGED TABLE pglock.waits (
  name   text COLLATE "C" NOT NULL,
  client uuid NOT NULL,                                   -- of the process that waits: made up by it, and shown to nobody
  wait   bigint NOT NULL,                                 -- tells one wait of that client from the next
  since  timestamptz NOT NULL,
  until  timestamptz NOT NULL,                            -- a waiter that died is passed over after that
  fair   boolean NOT NULL,
  woken  boolean NOT NULL DEFAULT false,                  -- a release has notified it; of a fair mark, any other is taken away
  PRIMARY KEY (name, client)
);

-- Wakes whoever has waited longest for each of these names that is free.
CREATE FUNCTION pglock.wake(names text[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE m pglock.waits;
BEGIN
  IF pg_notification_queue_usage() > 0.5 THEN RETURN; END IF;  -- a full queue would make the release fail
  FOR k IN 1..cardinality(names) LOOP
    SELECT x.* INTO m FROM pglock.waits x WHERE x.name = names[k] AND x.until > clock_timestamp()
        AND NOT EXISTS (SELECT FROM pglock.leases l WHERE l.name = names[k] AND l.slot = 0 AND l.expires_at > clock_timestamp())
      ORDER BY x.since, x.client LIMIT 1 FOR UPDATE SKIP LOCKED;
    CONTINUE WHEN NOT FOUND;
    IF m.fair THEN
      UPDATE pglock.waits w SET woken = true, until = least(w.until, clock_timestamp() + interval '3 s') WHERE w.name = m.name AND w.client = m.client;
    ELSE
      DELETE FROM pglock.waits w WHERE w.name = m.name AND w.client = m.client;
    END IF;
    PERFORM pg_notify('pglock_' || m.client, m.wait || ' ' || m.name);
  END LOOP;
END $$;

-- Marks waits for names. Answers in order, and with what acquire says of the holder:
--   marked   it is held, for remaining_us unless that changes: a release will wake this client
--   queued   it is not, but whoever came before is to have it, and may take remaining_us
--   retry    it is free, or its row is locked just now: ask for it, soon. Nothing was marked
-- A release locks the row before it looks for marks, and a mark is made under a lock on the row: so a release that does not see
-- the mark has committed, or is met here. A release or a renewal that comes meanwhile asks again, at once. A mark that is there
-- already is only looked at, and so is the row: nothing is written before half of its time is over.
CREATE FUNCTION pglock.mark(names text[], client uuid, waits bigint[], fairs boolean[])
RETURNS TABLE (ord int, status text, token bigint, owner text, since timestamptz, remaining_us bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE free_at timestamptz; mine pglock.waits; placed boolean; before pglock.waits;
BEGIN
  PERFORM pglock.need_read_committed();
  IF pg_current_xact_id_if_assigned() IS NULL THEN PERFORM set_config('synchronous_commit', 'off', true); END IF;
  FOR k IN 1..cardinality(names) LOOP
    ord := k; before := NULL; free_at := NULL;
    SELECT x.* INTO mine FROM pglock.waits x WHERE x.name = names[k] AND x.client = mark.client AND x.wait = waits[k]
      AND x.fair = fairs[k] AND x.until > clock_timestamp();
    placed := FOUND AND NOT mine.woken AND mine.until > clock_timestamp() + interval '30 s';
    IF placed THEN
      SELECT greatest(x.expires_at, x.not_before), x.token, x.owner, x.granted_at INTO free_at, token, owner, since
        FROM pglock.leases x WHERE x.name = names[k] AND x.slot = 0;
    ELSE
      SELECT greatest(x.expires_at, x.not_before), x.token, x.owner, x.granted_at INTO free_at, token, owner, since
        FROM pglock.leases x WHERE x.name = names[k] AND x.slot = 0 FOR SHARE SKIP LOCKED;
    END IF;
    status := CASE WHEN free_at > clock_timestamp() THEN 'marked' ELSE 'retry' END;
    IF fairs[k] AND status = 'retry' THEN
      SELECT x.* INTO before FROM pglock.waits x WHERE x.name = names[k] AND x.client <> mark.client AND x.fair AND x.until > clock_timestamp()
        AND (mine.since IS NULL OR (x.since, x.client) < (mine.since, mine.client)) ORDER BY x.since, x.client LIMIT 1;
      IF FOUND THEN status := 'queued'; END IF;
    END IF;
    IF status <> 'retry' AND NOT placed THEN
      INSERT INTO pglock.waits AS w (name, client, wait, since, until, fair)
        VALUES (names[k], mark.client, waits[k], clock_timestamp(), clock_timestamp() + interval '1 minute', fairs[k])
        ON CONFLICT (name, client) DO UPDATE SET wait = excluded.wait, until = excluded.until, fair = excluded.fair, woken = false,
          since = CASE WHEN w.until > clock_timestamp() AND w.fair = excluded.fair AND w.wait = excluded.wait THEN w.since ELSE excluded.since END;
    END IF;
    IF status = 'queued' AND NOT before.woken THEN         -- the lock was not released: it ran out
      PERFORM pglock.wake(names[k:k]);
      before.until := least(before.until, clock_timestamp() + interval '3 s');
    END IF;
    remaining_us := greatest(extract(epoch FROM CASE status WHEN 'marked' THEN free_at ELSE before.until END - clock_timestamp()) * 1000000, 0);
    RETURN NEXT;
  END LOOP;
END $$;

-- Takes away the marks of waits that have ended, and those of the same names that are out of date. Whoever was woken for nothing
-- meanwhile, with or without a mark that is left, passes that on.
CREATE FUNCTION pglock.unmark(names text[], client uuid, waits bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE woken boolean;
BEGIN
  IF pg_current_xact_id_if_assigned() IS NULL THEN PERFORM set_config('synchronous_commit', 'off', true); END IF;
  FOR k IN 1..cardinality(names) LOOP
    DELETE FROM pglock.waits w
      USING (SELECT FROM pglock.waits x WHERE x.name = names[k] AND x.client = unmark.client AND x.wait = waits[k] FOR UPDATE SKIP LOCKED) mine
      WHERE w.name = names[k] AND w.client = unmark.client RETURNING w.woken INTO woken;
    IF woken OR NOT FOUND THEN PERFORM pglock.wake(names[k:k]); END IF;
    DELETE FROM pglock.waits w
      USING (SELECT x.client FROM pglock.waits x WHERE x.name = names[k] AND x.until <= clock_timestamp() FOR UPDATE SKIP LOCKED) dead
      WHERE w.name = names[k] AND w.client = dead.client;
  END LOOP;
END $$;

-- Ends grants and makes others, in one call and one commit: how a process hands a lock from one of its own to the next. Whoever
-- waits elsewhere is woken for what is free afterwards. Answers as release does, with ended true, and then as acquire does;
-- awaited says that another process is marked as waiting for what was granted.
CREATE FUNCTION pglock.exchange(ended_names text[], ended_acquisitions uuid[], unheld boolean[], names text[], acquisitions uuid[],
  label text, ttls_us bigint[], holds_us bigint[], metas text[], seen bigint)
RETURNS TABLE (ord int, status text, token bigint, owner text, since timestamptz, remaining_us bigint, ended boolean, awaited boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY SELECT r.ord, r.status, NULL::bigint, NULL, NULL::timestamptz, NULL::bigint, true, false
    FROM pglock.release(ended_names, ended_acquisitions, false, unheld, false) r;
  RETURN QUERY SELECT a.*, false, a.status = 'granted' AND EXISTS (SELECT FROM pglock.waits w WHERE w.name = names[a.ord] AND w.until > clock_timestamp())
    FROM pglock.acquire(names, acquisitions, label, ttls_us, holds_us, metas, seen) a;
  IF EXISTS (SELECT FROM pglock.waits w WHERE w.name = ANY (ended_names)) THEN PERFORM pglock.wake(ended_names); END IF;
END $$;
