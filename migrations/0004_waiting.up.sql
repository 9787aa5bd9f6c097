-- Waiting: who waits for a lock that another process holds, so that a release can wake it. A mark is a hint and never truth: all
-- that losing one costs is time, since a waiter also asks by itself now and then. So the table is not logged, and marks are
-- written without waiting for the disk.
--
-- A waiter has one mark for each name and process, and a channel of its own to LISTEN on. A release takes the mark that is
-- oldest and notifies its channel: one is woken and not all. No mark, no NOTIFY, which would serialize commits.

CREATE UNLOGGED TABLE pglock.waits (
  name   text COLLATE "C" NOT NULL,
  client uuid NOT NULL,                                   -- of the process that waits: made up by it, and shown to nobody
  wait   bigint NOT NULL,                                 -- tells one wait of that client from the next
  since  timestamptz NOT NULL DEFAULT clock_timestamp(),
  until  timestamptz NOT NULL,                            -- a waiter that died is passed over after that
  PRIMARY KEY (name, client)
);

-- Wakes whoever has waited longest for each of these names that is free, and takes its mark.
CREATE FUNCTION pglock.wake(names text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE m pglock.waits;
BEGIN
  IF pg_notification_queue_usage() > 0.5 THEN RETURN; END IF;  -- a full queue would make the release fail
  FOR k IN 1..cardinality(names) LOOP
    DELETE FROM pglock.waits w
      USING (SELECT x.client FROM pglock.waits x WHERE x.name = names[k] AND x.until > clock_timestamp()
               AND NOT EXISTS (SELECT FROM pglock.leases l WHERE l.name = names[k] AND l.slot = 0 AND l.expires_at > clock_timestamp())
             ORDER BY x.since LIMIT 1 FOR UPDATE SKIP LOCKED) oldest
      WHERE w.name = names[k] AND w.client = oldest.client RETURNING w.* INTO m;
    IF FOUND THEN PERFORM pg_notify('pglock_' || m.client, m.wait || ' ' || m.name); END IF;
  END LOOP;
END $$;

-- Marks waits for names that others hold: marked (a release will wake this client) | retry (free, or its row is locked just now:
-- try again soon). A release locks the row before it looks for marks, and a mark is made under a lock on the row: so a release
-- that does not see the mark has committed, or is met here. A release or a renewal that comes meanwhile asks again, at once.
CREATE FUNCTION pglock.mark(names text[], client uuid, waits bigint[]) RETURNS TABLE (ord int, status text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE held boolean;
BEGIN
  PERFORM pglock.need_read_committed();
  IF pg_current_xact_id_if_assigned() IS NULL THEN PERFORM set_config('synchronous_commit', 'off', true); END IF;
  FOR k IN 1..cardinality(names) LOOP
    ord := k;
    SELECT x.expires_at > clock_timestamp() INTO held FROM pglock.leases x WHERE x.name = names[k] AND x.slot = 0 FOR SHARE SKIP LOCKED;
    status := CASE WHEN held THEN 'marked' ELSE 'retry' END;
    IF held THEN
      INSERT INTO pglock.waits AS w (name, client, wait, until) VALUES (names[k], mark.client, waits[k], clock_timestamp() + interval '1 minute')
        ON CONFLICT (name, client) DO UPDATE SET wait = excluded.wait, until = excluded.until;
    END IF;
    RETURN NEXT;
  END LOOP;
END $$;

-- Takes away the marks of waits that have ended, and those of the same names that are out of date. A mark that a release has taken
-- meanwhile was a wake-up for nobody: another gets it.
CREATE FUNCTION pglock.unmark(names text[], client uuid, waits bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
  IF pg_current_xact_id_if_assigned() IS NULL THEN PERFORM set_config('synchronous_commit', 'off', true); END IF;
  FOR k IN 1..cardinality(names) LOOP
    DELETE FROM pglock.waits w
      USING (SELECT FROM pglock.waits x WHERE x.name = names[k] AND x.client = unmark.client AND x.wait = waits[k] FOR UPDATE SKIP LOCKED) mine
      WHERE w.name = names[k] AND w.client = unmark.client;
    IF NOT FOUND THEN PERFORM pglock.wake(names[k:k]); END IF;
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
