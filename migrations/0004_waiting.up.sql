-- Waiting: who waits for a lock that another process holds, so that a release can wake it. A mark is a hint and never truth: all
-- that losing one costs is time, since a waiter also asks by itself now and then. So the table is not logged, and marks are
-- written without waiting for the disk.
--
-- A waiter has one mark for each name and process, and a channel of its own to LISTEN on. A release notifies the channel of the mark
-- that is oldest: one is woken and not all. No mark, no NOTIFY, which would serialize commits.
--
-- A mark can say what its owner will ask for. Then the release grants it that, in its own transaction: a bequest, for three seconds or
-- the TTL if that is less. The notification says so, and is sent once that is on the disk. Who hears it in good time has the lock, and
-- trusts what must be left of it, counted from when the acquisition was made; its first renewal comes soon, and gives it its TTL. Who hears it
-- late, or not, asks for the same acquisition, and finds it granted. So a lock that is wanted goes from one process to the next with one
-- flush and no further question, and in order. A bequest that nobody fetches runs out. (To fetch it is to read. What a holder trusts is on
-- the disk: after the crash of a backend the server may have lost what was not, and has not been restarted.)
--
-- Any other mark stays until its owner is granted the lock or gives up, so that whoever was woken and finds that another was faster has
-- not lost its turn. The next release wakes somebody else, unless it has asked again by then. Whoever was woken and does nothing for
-- three seconds is passed over.
--
-- A fair mark is a place in a queue as well: whoever else waits fairly is told not to ask before it.

CREATE UNLOGGED TABLE pglock.waits (
  name   text COLLATE "C" NOT NULL,
  client uuid NOT NULL,                                   -- of the process that waits: made up by it, and shown to nobody
  wait   bigint NOT NULL,                                 -- tells one wait of that client from the next
  since  timestamptz NOT NULL,
  until  timestamptz NOT NULL,                            -- a waiter that died is passed over after that
  fair   boolean NOT NULL,
  kind   int NOT NULL DEFAULT 0,                          -- what it waits for, as acquire has it
  woken  boolean NOT NULL DEFAULT false,                  -- a release has notified it, and it has not marked its wait anew
  acquisition uuid,                                       -- what a release grants it, with the label and the TTL; NULL: it is only woken
  owner  text,
  ttl    interval,
  PRIMARY KEY (name, client)
);

-- Grants the mutex that a mark waits for to its owner, if this transaction has just freed it, and answers what the owner is to be told: which
-- acquisition, the token, and when, in microseconds; NULL if it did not. The rules are those of acquire; but where no token is left the
-- release must not fail.
CREATE FUNCTION pglock.bequeath(m pglock.waits) RETURNS text LANGUAGE plpgsql AS $$
DECLARE drawn bigint; last bigint; at timestamptz;
BEGIN
  UPDATE pglock.leases l SET token = nextval('pglock.fencing_token'), acquisition = m.acquisition, owner = m.owner, granted_at = clock_timestamp(),
    ttl = m.ttl, expires_at = clock_timestamp() + least(m.ttl, interval '3 s'), not_before = 'epoch', delay = '0', metadata = NULL, revoked = NULL
    FROM (SELECT x.ctid AS at, x.token FROM pglock.leases x, pglock.guard_now g
            WHERE x.name = m.name AND x.slot = 0 AND x.permits = 0 AND x.expires_at = 'epoch' AND x.not_before <= clock_timestamp()
              AND x.acquisition IS DISTINCT FROM m.acquisition AND x.revoked IS DISTINCT FROM m.acquisition
              AND g.no_grants_before <= clock_timestamp() AND NOT g.other AND g.last_token < 9007199254740991 AND m.ttl BETWEEN interval '100 ms' AND g.cap_us * interval '1 us'
            FOR UPDATE OF x SKIP LOCKED) free
    WHERE l.ctid = free.at
    RETURNING l.token, free.token, l.granted_at INTO drawn, last, at;
  IF NOT FOUND THEN RETURN NULL; END IF;
  IF drawn <= last THEN                                  -- a sequence that fell behind is moved, not obeyed
    drawn := pglock.move_token(last, false);
    UPDATE pglock.leases x SET token = drawn WHERE x.name = m.name AND x.slot = 0;
  END IF;
  DELETE FROM pglock.waits w WHERE w.name = m.name AND w.client = m.client;
  RETURN concat_ws(',', m.acquisition, drawn, (extract(epoch FROM at) * 1000000)::bigint);
END $$;

-- Wakes whoever has waited longest for each of these names that is free for it, and the readers behind a reader. durability is what
-- synchronous_commit was before this call, and is given where the names may be bequeathed: a grant is durable.
CREATE FUNCTION pglock.wake(names text[], durability text DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
DECLARE m pglock.waits; mine pglock.waits; readers boolean; granted text;
BEGIN
  IF pg_notification_queue_usage() > 0.5 THEN RETURN; END IF;  -- a full queue would make the release fail
  FOR k IN 1..cardinality(names) LOOP
    m := NULL; readers := false;
    LOOP
      SELECT x.* INTO m FROM pglock.waits x WHERE x.name = names[k] AND x.until > clock_timestamp()
          AND (x.fair OR NOT x.woken) AND (m.client IS NULL OR (x.since, x.client) > (m.since, m.client))
        ORDER BY x.since, x.client LIMIT 1;
      EXIT WHEN NOT FOUND OR m.kind >= 0 AND readers;
      EXIT WHEN EXISTS (SELECT FROM pglock.obstacle(m.name, m.kind, m.client) o WHERE o.status IN ('held', 'other_kind'));
      -- Only now: a lock on the mark of one who is not woken then would make a release beside this pass it over.
      -- And as it is then: who would have been granted it may have given up meanwhile.
      SELECT x.* INTO mine FROM pglock.waits x WHERE x.name = m.name AND x.client = m.client AND x.wait = m.wait AND (x.fair OR NOT x.woken)
        FOR UPDATE SKIP LOCKED;
      CONTINUE WHEN NOT FOUND;
      m := mine; granted := NULL;
      IF durability IS NOT NULL AND m.kind = 0 AND m.acquisition IS NOT NULL AND NOT EXISTS (SELECT FROM pglock.waits x WHERE x.name = m.name
          AND x.fair AND x.until > clock_timestamp() AND (x.since, x.client) < (m.since, m.client)) THEN
        granted := pglock.bequeath(m);
      END IF;
      IF granted IS NOT NULL THEN
        PERFORM set_config('synchronous_commit', CASE durability WHEN 'off' THEN 'local' ELSE durability END, true);
      ELSE
        UPDATE pglock.waits w SET woken = true, until = least(w.until, clock_timestamp() + interval '3 s') WHERE w.name = m.name AND w.client = m.client;
      END IF;
      PERFORM pg_notify('pglock_' || m.client, concat_ws(',', m.wait, granted) || ' ' || m.name);
      EXIT WHEN m.kind >= 0;
      readers := true;
    END LOOP;
  END LOOP;
END $$;

-- Marks waits for names. Answers in order, and with what acquire says of the holder:
--   marked   it is held, for remaining_us unless that changes: a release will wake this client
--   marked_kept  the same, where nobody holds it, and it is kept from others for remaining_us
--   queued   it is not, but whoever came before is to have it, and may take remaining_us
--   retry    it is free, or its row is locked just now, or it was bequeathed to this very acquisition: ask for it, soon. Nothing was marked
-- A mark of a mutex that comes with its TTL is made while the row is locked, too: marked, with a remaining_us of 0. Whoever has the row may not see
-- that, so ask again, soon. (A process that hands the lock on within itself has the row locked for as long as its commits take. It would not learn
-- that another waits.)
-- A release locks the row before it looks for marks, and a mark is made under a lock on the row: so a release that does not see
-- the mark has committed, or is met here. A release or a renewal that comes meanwhile asks again, at once. A mark that is there
-- already is only looked at, and so is the row: nothing is written before half of its time is over. Where several may hold the name,
-- the row is slot 0, which the release of a slot share-locks. acquisitions, label and ttls_us are what a release may grant.
CREATE FUNCTION pglock.mark(names text[], client uuid, waits bigint[], fairs boolean[], kinds int[] DEFAULT NULL, acquisitions uuid[] DEFAULT NULL,
  label text DEFAULT NULL, ttls_us bigint[] DEFAULT NULL)
RETURNS TABLE (ord int, status text, token bigint, owner text, since timestamptz, remaining_us bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE free_at timestamptz; over boolean; mine pglock.waits; placed boolean; before pglock.waits; wanted int; heir boolean; hasty boolean;
BEGIN
  PERFORM pglock.need_read_committed();
  IF pg_current_xact_id_if_assigned() IS NULL THEN PERFORM set_config('synchronous_commit', 'off', true); END IF;
  FOR k IN 1..cardinality(names) LOOP
    ord := k; token := NULL; owner := NULL; since := NULL; before := NULL; free_at := NULL; heir := false; hasty := false; wanted := coalesce(kinds[k], 0);
    SELECT x.* INTO mine FROM pglock.waits x WHERE x.name = names[k] AND x.client = mark.client AND x.wait = waits[k]
      AND x.fair = fairs[k] AND x.kind = wanted AND x.until > clock_timestamp();
    placed := FOUND AND NOT mine.woken AND mine.until > clock_timestamp() + interval '30 s' AND mine.acquisition IS NOT DISTINCT FROM acquisitions[k];
    IF wanted <> 0 OR EXISTS (SELECT FROM pglock.leases x WHERE x.name = names[k] AND x.slot = 0 AND x.permits <> 0) THEN
      PERFORM FROM pglock.leases x WHERE x.name = names[k] AND x.slot = 0 AND NOT placed FOR NO KEY UPDATE SKIP LOCKED;
      IF FOUND OR placed THEN
        SELECT o.until, o.status = 'kept', o.token, o.owner, o.since INTO free_at, over, token, owner, since
          FROM pglock.obstacle(names[k], wanted, mark.client) o WHERE o.status IN ('held', 'kept');
      END IF;
    ELSIF placed THEN
      SELECT greatest(x.expires_at + x.delay, x.not_before), x.expires_at <= clock_timestamp(), x.token, x.owner, x.granted_at, x.acquisition = acquisitions[k]
        INTO free_at, over, token, owner, since, heir FROM pglock.leases x WHERE x.name = names[k] AND x.slot = 0;
    ELSE
      SELECT greatest(x.expires_at + x.delay, x.not_before), x.expires_at <= clock_timestamp(), x.token, x.owner, x.granted_at, x.acquisition = acquisitions[k]
        INTO free_at, over, token, owner, since, heir FROM pglock.leases x WHERE x.name = names[k] AND x.slot = 0 FOR SHARE SKIP LOCKED;
      IF NOT FOUND THEN                                  -- it is being granted, perhaps to this one, or handed on within a process
        -- One look: a bequest to this one would take its mark away, and be there, at once. Less than half of a mark's time: it is not placed.
        INSERT INTO pglock.waits (name, client, wait, since, until, fair, acquisition, owner, ttl)
          SELECT x.name, mark.client, waits[k], clock_timestamp(), clock_timestamp() + interval '29 s', fairs[k], acquisitions[k], concat(left(label, 1000)),
            ttls_us[k] * interval '1 us'
            FROM pglock.leases x WHERE x.name = names[k] AND x.slot = 0 AND x.expires_at > clock_timestamp() AND x.acquisition IS DISTINCT FROM acquisitions[k]
              AND ttls_us[k] > 0 AND NOT EXISTS (SELECT FROM pglock.waits w WHERE w.name = names[k] AND w.client = mark.client)
          ON CONFLICT DO NOTHING;
        hasty := FOUND;
        SELECT x.acquisition = acquisitions[k], x.token, x.owner, x.granted_at INTO heir, token, owner, since
          FROM pglock.leases x WHERE x.name = names[k] AND x.slot = 0;
      END IF;
    END IF;
    IF hasty THEN
      status := 'marked'; remaining_us := 0;
      RETURN NEXT;
      CONTINUE;
    END IF;
    IF heir THEN
      status := 'retry'; remaining_us := 0;
      RETURN NEXT;
      CONTINUE;
    END IF;
    status := CASE WHEN free_at > clock_timestamp() THEN 'marked' ELSE 'retry' END;
    IF fairs[k] AND status = 'retry' THEN
      SELECT x.* INTO before FROM pglock.waits x WHERE x.name = names[k] AND x.client <> mark.client AND x.fair AND x.until > clock_timestamp()
        AND (mine.since IS NULL OR (x.since, x.client) < (mine.since, mine.client)) ORDER BY x.since, x.client LIMIT 1;
      IF FOUND THEN status := 'queued'; END IF;
    END IF;
    IF status = 'retry' AND mine.woken AND NOT fairs[k] THEN  -- it has its turn still
      UPDATE pglock.waits w SET woken = false, until = clock_timestamp() + interval '1 minute' WHERE w.name = names[k] AND w.client = mark.client;
    ELSIF status <> 'retry' AND NOT placed THEN
      INSERT INTO pglock.waits AS w (name, client, wait, since, until, fair, kind, acquisition, owner, ttl)
        VALUES (names[k], mark.client, waits[k], clock_timestamp(), clock_timestamp() + interval '1 minute', fairs[k], wanted, acquisitions[k],
          concat(left(label, 1000)), ttls_us[k] * interval '1 us')
        ON CONFLICT (name, client) DO UPDATE SET wait = excluded.wait, until = excluded.until, fair = excluded.fair, kind = excluded.kind, woken = false,
          acquisition = excluded.acquisition, owner = excluded.owner, ttl = excluded.ttl,
          since = CASE WHEN w.until > clock_timestamp() AND (w.fair, w.kind, w.wait) = (excluded.fair, excluded.kind, excluded.wait) THEN w.since
            ELSE excluded.since END;
    END IF;
    IF status = 'queued' AND NOT before.woken THEN         -- the lock was not released: it ran out
      PERFORM pglock.wake(names[k:k]);
      before.until := least(before.until, clock_timestamp() + interval '3 s');
    END IF;
    remaining_us := greatest(extract(epoch FROM CASE status WHEN 'marked' THEN free_at ELSE before.until END - clock_timestamp()) * 1000000, 0);
    IF status = 'marked' AND over THEN status := 'marked_kept'; END IF;
    RETURN NEXT;
  END LOOP;
END $$;

-- Takes away the mark of a process that has the lock. Most have none: who waits is mostly granted it by a release.
CREATE FUNCTION pglock.wait_over(lock text, waiter uuid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM pglock.waits x WHERE x.name = lock AND x.client = waiter) THEN
    DELETE FROM pglock.waits w USING (SELECT FROM pglock.waits x WHERE x.name = lock AND x.client = waiter FOR UPDATE SKIP LOCKED) mine
      WHERE w.name = lock AND w.client = waiter;
  END IF;
END $$;

-- Takes away the marks of waits that have ended, and those of the same names that are out of date. Whoever was woken for nothing
-- meanwhile, with or without a mark that is left, passes that on; who wanted the name alone lets the readers behind it pass.
-- Where an acquisition is given, a mark that would have it granted is left to the next one in the process, and does that no more.
-- It answers which marks were not there, or in another's hands: what they would have had granted may be granted, or be about to be: then
-- it is pending.
CREATE FUNCTION pglock.unmark(names text[], client uuid, waits bigint[], acquisitions uuid[] DEFAULT NULL) RETURNS TABLE (ord int, pending boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE woken boolean; kind int; there boolean;
BEGIN
  IF pg_current_xact_id_if_assigned() IS NULL THEN PERFORM set_config('synchronous_commit', 'off', true); END IF;
  FOR k IN 1..cardinality(names) LOOP
    IF acquisitions[k] IS NOT NULL THEN
      UPDATE pglock.waits w SET acquisition = NULL
        FROM (SELECT FROM pglock.waits x WHERE x.name = names[k] AND x.client = unmark.client AND x.acquisition = acquisitions[k] FOR UPDATE SKIP LOCKED) mine
        WHERE w.name = names[k] AND w.client = unmark.client;
      IF NOT FOUND THEN
        ord := k;
        pending := EXISTS (SELECT FROM pglock.waits x WHERE x.name = names[k] AND x.client = unmark.client AND x.acquisition = acquisitions[k]);
        RETURN NEXT;
      END IF;
      CONTINUE;
    END IF;
    DELETE FROM pglock.waits w
      USING (SELECT FROM pglock.waits x WHERE x.name = names[k] AND x.client = unmark.client AND x.wait = waits[k] FOR UPDATE SKIP LOCKED) mine
      WHERE w.name = names[k] AND w.client = unmark.client RETURNING w.woken, w.kind INTO woken, kind;
    there := FOUND;
    IF NOT there THEN
      ord := k;
      pending := EXISTS (SELECT FROM pglock.waits x WHERE x.name = names[k] AND x.client = unmark.client AND x.wait = waits[k]);
      RETURN NEXT;
    END IF;
    IF woken OR NOT there OR kind = 0 AND EXISTS (SELECT FROM pglock.waits x WHERE x.name = names[k] AND x.kind = -1) THEN
      PERFORM pglock.wake(names[k:k]);
    END IF;
    DELETE FROM pglock.waits w
      USING (SELECT x.client FROM pglock.waits x WHERE x.name = names[k] AND x.until <= clock_timestamp() FOR UPDATE SKIP LOCKED) dead
      WHERE w.name = names[k] AND w.client = dead.client;
  END LOOP;
END $$;

-- Ends grants and makes others, in one call and one commit: how a process hands a lock from one of its own to the next. Whoever
-- waits elsewhere is woken for what is free afterwards. Answers as release does, with ended true, and then as acquire does;
-- awaited says that another process is marked as waiting for what was granted.
CREATE FUNCTION pglock.exchange(ended_names text[], ended_acquisitions uuid[], unheld boolean[], ended_slots int[], names text[], acquisitions uuid[],
  label text, ttls_us bigint[], holds_us bigint[], metas text[], seen bigint, delays_us bigint[] DEFAULT NULL, kinds int[] DEFAULT NULL,
  lots int[] DEFAULT NULL, client uuid DEFAULT NULL, waits bigint[] DEFAULT NULL, heirs boolean[] DEFAULT NULL)
RETURNS TABLE (ord int, status text, token bigint, owner text, since timestamptz, remaining_us bigint, slot int, ended boolean, awaited boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE durability text := current_setting('synchronous_commit'); last bigint; others boolean;
BEGIN
  -- A mutex that goes from one to the next, alone: both in one write, which costs half. Nothing is free afterwards, so nobody is
  -- woken. What is missed here is done below.
  IF cardinality(ended_names) = 1 AND ended_names = names AND (ended_slots[1] <> 0 OR kinds[1] <> 0) IS NOT TRUE THEN
    UPDATE pglock.leases l SET token = nextval('pglock.fencing_token'), acquisition = acquisitions[1], owner = left(label, 1000),
      granted_at = clock_timestamp(), ttl = ttls_us[1] * interval '1 us', expires_at = clock_timestamp() + ttls_us[1] * interval '1 us',
      not_before = CASE WHEN holds_us[1] > 0 THEN clock_timestamp() + least(holds_us[1], 31622400000000) * interval '1 us' ELSE 'epoch' END,
      delay = CASE WHEN delays_us[1] > 0 THEN least(delays_us[1], 86400000000) * interval '1 us' ELSE '0' END,
      metadata = metas[1]::jsonb, revoked = NULL
      FROM (SELECT x.ctid AS at, x.token FROM pglock.leases x, pglock.guard_now g
              WHERE x.name = names[1] AND x.slot = 0 AND x.permits = 0 AND x.acquisition = ended_acquisitions[1] AND x.expires_at > 'epoch'
                AND x.not_before <= clock_timestamp() AND acquisitions[1] <> x.acquisition AND x.revoked IS DISTINCT FROM acquisitions[1]
                AND g.ready AND NOT g.other AND seen <= g.last_token AND ttls_us[1] BETWEEN 100000 AND g.cap_us
              FOR UPDATE OF x SKIP LOCKED) mine
      WHERE l.ctid = mine.at
      RETURNING l.token, mine.token, EXISTS (SELECT FROM pglock.waits w WHERE w.name = names[1] AND w.until > clock_timestamp()
        AND w.client IS DISTINCT FROM exchange.client) INTO token, last, others;
    IF FOUND THEN
      IF token <= last THEN                              -- a sequence that fell behind is moved, not obeyed
        token := pglock.move_token(last, false);
        UPDATE pglock.leases x SET token = exchange.token WHERE x.name = names[1] AND x.slot = 0;
      END IF;
      IF waits[1] > 0 THEN PERFORM pglock.wait_over(names[1], client); END IF;
      RETURN QUERY VALUES (1, 'released', NULL::bigint, NULL, NULL::timestamptz, NULL::bigint, NULL::int, true, false),
        (1, 'granted', token, left(label, 1000), clock_timestamp(), ttls_us[1], 0, false, others);
      RETURN;
    END IF;
  END IF;
  RETURN QUERY SELECT r.ord, r.status, NULL::bigint, NULL, NULL::timestamptz, NULL::bigint, NULL::int, true, false
    FROM pglock.release(ended_names, ended_acquisitions, false, unheld, false, ended_slots) r;
  RETURN QUERY SELECT a.*, false, a.status = 'granted' AND EXISTS (SELECT FROM pglock.waits w WHERE w.name = names[a.ord] AND w.until > clock_timestamp() AND w.client IS DISTINCT FROM exchange.client)
    FROM pglock.acquire(names, acquisitions, label, ttls_us, holds_us, metas, seen, delays_us, kinds, lots, client, waits, heirs) a;
  IF EXISTS (SELECT FROM pglock.waits w WHERE w.name = ANY (ended_names)) THEN PERFORM pglock.wake(ended_names, durability); END IF;
END $$;
