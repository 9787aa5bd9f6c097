-- Locks that several hold at once: readers beside each other, and the permits of a semaphore. Each holder has a slot of its own, a
-- row with a token, an expiry and an acquisition like any other.
--
-- The rules beside those of 0001_leases:
--   * Slot 0 is the gate. A grant of a slot share-locks it, so that such grants go side by side; a grant that leaves no room for
--     others, and a change of what the name is, locks it alone. A transaction that is tied to a slot holds it too.
--   * Who is in the way is looked at in a later statement: in the same one it would be the state before the lock.
--   * Who wants a name alone locks the slots that were not released as well: a renewal that is under way is in no snapshot.
--   * Whoever is granted a name alone makes it a mutex, so that the first reader after it locks the gate alone too: a share lock
--     would pass by the KEY SHARE of a transaction that is tied to slot 0.

-- Who is in the way of a grant, if anybody is: held, kept or other_kind as acquire has them, until when at the latest, and in slot
-- what the name is. Locks nothing. A reader makes way for whoever waits for the name alone, and came before it.
CREATE FUNCTION pglock.obstacle(lock text, kind int, client uuid, OUT status text, OUT token bigint, OUT owner text, OUT since timestamptz,
  OUT until timestamptz, OUT slot int)
LANGUAGE plpgsql AS $$
DECLARE same boolean; busy int; waited timestamptz;
BEGIN
  SELECT x.permits INTO slot FROM pglock.leases x WHERE x.name = lock AND x.slot = 0;
  IF NOT FOUND THEN RETURN; END IF;
  same := slot = kind OR slot <= 0 AND kind <= 0;
  IF slot <> 0 THEN                                      -- while one is revoked, nobody is granted another
    SELECT 'held', x.token, x.owner, x.granted_at, greatest(x.expires_at, x.not_before) INTO status, token, owner, since, until
      FROM pglock.leases x WHERE x.name = lock AND x.revoked IS NOT NULL AND greatest(x.expires_at, x.not_before) > clock_timestamp() ORDER BY 5 DESC LIMIT 1;
    IF FOUND THEN RETURN; END IF;
  END IF;
  IF slot = kind AND kind > 0 THEN                       -- the first to go of those who hold all permits
    SELECT CASE WHEN x.expires_at > clock_timestamp() THEN 'held' ELSE 'kept' END, x.token, x.owner, x.granted_at,
        greatest(x.expires_at + x.delay, x.not_before), count(*) OVER ()
      INTO status, token, owner, since, until, busy
      FROM pglock.leases x WHERE x.name = lock AND x.slot BETWEEN 1 AND kind AND greatest(x.expires_at + x.delay, x.not_before) > clock_timestamp()
      ORDER BY 5 LIMIT 1;
    IF busy >= kind IS NOT TRUE THEN status := NULL; END IF;
    RETURN;
  END IF;
  SELECT CASE WHEN NOT same THEN 'other_kind' WHEN x.expires_at > clock_timestamp() THEN 'held' ELSE 'kept' END, x.token, x.owner, x.granted_at,
      greatest(x.expires_at + x.delay, x.not_before)
    INTO status, token, owner, since, until
    FROM pglock.leases x WHERE x.name = lock AND (x.slot = 0 OR kind >= 0 OR NOT same)
      AND greatest(x.expires_at + x.delay, x.not_before) > clock_timestamp()
    ORDER BY x.expires_at > clock_timestamp() DESC, 5 DESC LIMIT 1;
  IF NOT FOUND AND kind = -1 AND same THEN
    SELECT w.since INTO waited FROM pglock.waits w WHERE w.name = lock AND w.client = obstacle.client AND w.kind = -1 AND w.until > clock_timestamp();
    IF EXISTS (SELECT FROM pglock.waits w WHERE w.name = lock AND w.kind = 0 AND w.until > clock_timestamp() AND (w.since < waited OR waited IS NULL)) THEN
      SELECT x.token, x.owner, x.granted_at, greatest(x.expires_at + x.delay, x.not_before) INTO token, owner, since, until
        FROM pglock.leases x WHERE x.name = lock AND x.expires_at > clock_timestamp() ORDER BY x.expires_at DESC LIMIT 1;
      status := 'held';
      until := coalesce(until, clock_timestamp());
    END IF;
  END IF;
END $$;

-- Locks what a grant is to be written to, and answers free with its slot and the latest token of the name; or who is in the way, as
-- obstacle does; or retry. If nobody holds the name, it becomes what is asked for.
CREATE FUNCTION pglock.claim(lock text, kind int, id uuid, client uuid, OUT status text, OUT token bigint, OUT owner text, OUT since timestamptz,
  OUT until timestamptz, OUT slot int)
LANGUAGE plpgsql AS $$
DECLARE was int; unreleased int; mine int;
BEGIN
  LOOP
    SELECT x.permits INTO was FROM pglock.leases x WHERE x.name = lock AND x.slot = 0;
    EXIT WHEN FOUND;
    IF NOT pglock.plant(lock) THEN status := 'retry'; RETURN; END IF;
  END LOOP;
  status := 'retry';
  IF kind <> 0 AND was = kind THEN
    PERFORM FROM pglock.leases x WHERE x.name = lock AND x.slot = 0 AND x.permits = kind FOR SHARE SKIP LOCKED;
  ELSE
    PERFORM FROM pglock.leases x WHERE x.name = lock AND x.slot = 0 AND x.permits = was FOR UPDATE SKIP LOCKED;
  END IF;
  IF NOT FOUND THEN RETURN; END IF;
  IF kind <> 0 THEN                                      -- the same acquisition may be on its way to another slot, and in no snapshot
    IF NOT pg_try_advisory_xact_lock(hashtextextended(id::text, 7251)) THEN RETURN; END IF;
    PERFORM FROM pglock.leases x WHERE x.name = lock AND id IN (x.acquisition, x.revoked);
    IF FOUND THEN RETURN; END IF;
  END IF;
  IF was <> 0 AND (kind = 0 OR was <> kind) THEN
    SELECT count(*) INTO unreleased FROM pglock.leases x WHERE x.name = lock AND x.slot > 0 AND x.expires_at > 'epoch';
    SELECT count(*) INTO mine FROM (SELECT FROM pglock.leases x WHERE x.name = lock AND x.slot > 0 AND x.expires_at > 'epoch' FOR UPDATE SKIP LOCKED) l;
    IF mine < unreleased THEN RETURN; END IF;
  END IF;
  SELECT o.* INTO status, token, owner, since, until, slot FROM pglock.obstacle(lock, kind, client) o;
  IF status IS NOT NULL THEN RETURN; END IF;
  IF was <> kind AND kind <> 0 THEN
    UPDATE pglock.leases x SET permits = kind WHERE x.name = lock AND x.slot = 0;
  END IF;
  IF kind = 0 THEN
    slot := 0;
  ELSE
    SELECT x.slot INTO slot FROM pglock.leases x WHERE x.name = lock AND x.slot > 0 AND (x.slot <= kind OR kind = -1)
      AND greatest(x.expires_at + x.delay, x.not_before) <= clock_timestamp() ORDER BY x.slot LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND AND pg_try_advisory_xact_lock(hashtextextended('pglock.leases', hashtextextended(lock, 7251))) THEN
      INSERT INTO pglock.leases AS l (name, slot)
        SELECT lock, s FROM generate_series(1, CASE WHEN kind > 0 THEN kind ELSE
            (SELECT max(x.slot) + 1 FROM pglock.leases x WHERE x.name = lock) END) AS s
          WHERE NOT EXISTS (SELECT FROM pglock.leases x WHERE x.name = lock AND x.slot = s) ORDER BY s LIMIT 1
        RETURNING l.slot INTO slot;
    END IF;
  END IF;
  SELECT max(x.token) INTO token FROM pglock.leases x WHERE x.name = lock;
  status := CASE WHEN slot IS NULL THEN 'retry' ELSE 'free' END;
END $$;

-- What acquire does for one lot, with the answers of acquire. All are looked at before any is locked: what is held costs nothing.
CREATE FUNCTION pglock.acquire_slots(names text[], id uuid, label text, ttl_us bigint, hold_us bigint, delay_us bigint, meta text, kind int,
  cap bigint, client uuid)
RETURNS TABLE (ord int, status text, token bigint, owner text, since timestamptz, remaining_us bigint, slot int)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  verdict text;                                          -- of all
  way record;                                            -- what one of them met
  places int[];
  last bigint := 0;
BEGIN
  SELECT CASE WHEN (bool_and(octet_length(n) BETWEEN 1 AND 255) AND id IS NOT NULL AND ttl_us >= 100000 AND kind BETWEEN -1 AND 10000) IS NOT TRUE
    THEN 'invalid' WHEN ttl_us > cap THEN 'ttl_too_long' END INTO verdict FROM unnest(names) AS n;
  IF verdict IS NULL THEN                                -- a retry: it lives as a whole, or not at all
    SELECT CASE WHEN count(*) = 0 THEN NULL
        WHEN count(*) FILTER (WHERE x.acquisition = id AND x.expires_at > clock_timestamp()) = cardinality(names) THEN 'granted' ELSE 'spent' END
      INTO verdict FROM pglock.leases x WHERE x.name = ANY (names) AND id IN (x.acquisition, x.revoked);
  END IF;
  IF verdict IS NOT NULL THEN
    FOR k IN 1..cardinality(names) LOOP
      ord := k; status := verdict;
      SELECT x.token, x.owner, x.granted_at, greatest(extract(epoch FROM x.expires_at - clock_timestamp()) * 1000000, 0), x.slot
        INTO token, owner, since, remaining_us, slot FROM pglock.leases x WHERE x.name = names[k] AND x.acquisition = id;
      IF status = 'ttl_too_long' THEN remaining_us := cap; END IF;
      RETURN NEXT;
    END LOOP;
    RETURN;
  END IF;

  FOR locking IN 0..1 LOOP
    FOR k IN 1..cardinality(names) LOOP
      IF locking = 0 THEN
        SELECT o.* INTO way FROM pglock.obstacle(names[k], kind, client) o;
      ELSE
        SELECT c.* INTO way FROM pglock.claim(names[k], kind, id, client) c;
        places[k] := way.slot;
        last := greatest(last, way.token);
      END IF;
      CONTINUE WHEN way.status IS NULL OR way.status = 'free';
      FOR j IN 1..cardinality(names) LOOP
        ord := j; status := 'spared';
        IF j = k THEN
          status := way.status; token := way.token; owner := way.owner; since := way.since; slot := way.slot;
          remaining_us := greatest(extract(epoch FROM way.until - clock_timestamp()) * 1000000, 0);
        END IF;
        RETURN NEXT;
        token := NULL; owner := NULL; since := NULL; slot := NULL; remaining_us := NULL;
      END LOOP;
      RETURN;
    END LOOP;
  END LOOP;

  token := nextval('pglock.fencing_token');
  IF token <= last THEN token := pglock.move_token(last, false); END IF;
  status := 'granted'; owner := label; since := clock_timestamp(); remaining_us := ttl_us;
  FOR k IN 1..cardinality(names) LOOP
    ord := k; slot := places[k];
    UPDATE pglock.leases l SET token = acquire_slots.token, acquisition = id, owner = label, granted_at = clock_timestamp(), ttl = ttl_us * interval '1 us',
      expires_at = clock_timestamp() + ttl_us * interval '1 us',
      not_before = CASE WHEN hold_us > 0 THEN clock_timestamp() + least(hold_us, 31622400000000) * interval '1 us' ELSE 'epoch' END,
      delay = CASE WHEN delay_us > 0 THEN least(delay_us, 86400000000) * interval '1 us' ELSE '0' END, metadata = meta::jsonb, revoked = NULL, permits = 0
      WHERE l.name = names[k] AND l.slot = places[k];
    RETURN NEXT;
  END LOOP;
END $$;

-- Owner only: takes a name from its holders. Their renewals are refused at once, and clients that listen are told; nobody is granted
-- the name before their leases have run out, nor before grace_us has passed. Then a token is drawn in each slot, so that what they
-- still write is stale. A lease that was revoked stays so, whoever revokes it again. revocation is the id of this one, begin is true
-- until the first answer came:
--   revoked       ask again after remaining_us, with begin false
--   retry         some row is locked just now: ask again soon, with the same begin
--   done          token is the latest of the name, later than those of all that were revoked
--   unknown       nobody was ever granted it
--   held_back, stale   as acquire
-- Whoever is granted the name while this waits has a later token, and is left alone.
CREATE FUNCTION pglock.revoke(lock text, revocation uuid, label text, grace_us bigint, begin boolean, seen bigint DEFAULT 0,
  OUT status text, OUT token bigint, OUT owner text, OUT since timestamptz, OUT remaining_us bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE l pglock.leases; until timestamptz; last bigint; n int; mine int[];
BEGIN
  SELECT a.verdict, a.hold_us, a.reason INTO status, remaining_us, owner FROM pglock.admit(seen) a;
  IF status IS NOT NULL THEN RETURN; END IF;
  SELECT max(x.token) INTO last FROM pglock.leases x WHERE x.name = lock;
  IF last > 0 IS NOT TRUE THEN status := 'unknown'; RETURN; END IF;
  status := 'retry'; remaining_us := 0;
  IF begin THEN
    FOR l IN SELECT x.* FROM pglock.leases x WHERE x.name = lock AND x.expires_at > clock_timestamp() FOR NO KEY UPDATE SKIP LOCKED LOOP
      UPDATE pglock.leases x SET acquisition = revocation, revoked = coalesce(x.revoked, x.acquisition),
        owner = CASE WHEN x.revoked IS NULL THEN x.owner || ' (revoked by ' || left(label, 255) || ')' ELSE x.owner END,
        not_before = greatest(x.not_before, clock_timestamp() + grace_us * interval '1 us')
        WHERE x.name = lock AND x.slot = l.slot;
      PERFORM pg_notify('pglock_revoked', l.token::text);
    END LOOP;
    IF EXISTS (SELECT FROM pglock.leases x WHERE x.name = lock AND x.expires_at > clock_timestamp() AND x.revoked IS NULL) THEN RETURN; END IF;
  END IF;
  SELECT x.expires_at, x.owner, x.granted_at, x.token INTO until, owner, since, token
    FROM pglock.leases x WHERE x.name = lock AND x.revoked IS NOT NULL AND x.expires_at > clock_timestamp() ORDER BY 1 DESC LIMIT 1;
  IF until > clock_timestamp() THEN
    status := 'revoked';
    remaining_us := greatest(extract(epoch FROM until - clock_timestamp()) * 1000000, CASE WHEN begin THEN grace_us END);
    RETURN;
  END IF;
  -- A free name is taken too: who held it last may not know.
  SELECT count(*) INTO n FROM pglock.leases x WHERE x.name = lock AND x.expires_at <= clock_timestamp();
  SELECT array_agg(x.slot) INTO mine FROM (SELECT x.slot FROM pglock.leases x WHERE x.name = lock AND x.expires_at <= clock_timestamp() FOR UPDATE SKIP LOCKED) x;
  IF coalesce(cardinality(mine), 0) < n THEN RETURN; END IF;
  -- Unless another has the name alone by now: beside that grant, and the next one of its process, no slot gets a later token.
  IF 0 = ANY (mine) OR NOT EXISTS (SELECT FROM pglock.leases x WHERE x.name = lock AND x.slot = 0) THEN
    token := nextval('pglock.fencing_token');
    IF token <= last THEN token := pglock.move_token(last, false); END IF;
    UPDATE pglock.leases x SET token = revoke.token, acquisition = revocation, owner = label, granted_at = clock_timestamp(), metadata = NULL
      WHERE x.name = lock AND x.slot = ANY (mine);
  END IF;
  SELECT max(x.token) INTO token FROM pglock.leases x WHERE x.name = lock;
  IF EXISTS (SELECT FROM pglock.waits w WHERE w.name = lock) THEN PERFORM pglock.wake(ARRAY[lock]); END IF;
  status := 'done';
END $$;

-- Owner only: revoke to its end, for an operator with psql: CALL pglock.revoke_lock('name'). It answers the token. It blocks until the
-- leases would have run out, a TTL at most, or until grace has passed. If it is stopped, call it again. Not in a transaction: what
-- it does is committed on the way. It has no settings of its own, which would forbid that, so it makes them each time.
CREATE PROCEDURE pglock.revoke_lock(lock text, grace interval DEFAULT '0', INOUT token bigint DEFAULT NULL) LANGUAGE plpgsql AS $$
DECLARE id uuid := pg_catalog.gen_random_uuid(); first boolean := true; again boolean := true; rest float8; r record;
BEGIN
  WHILE again LOOP
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    SELECT * INTO r FROM pglock.revoke(lock, id, current_user::text, (extract(epoch FROM grace) * 1000000)::bigint, first);
    again := r.status IN ('revoked', 'retry');
    IF NOT again AND r.status <> 'done' THEN
      RAISE EXCEPTION 'lock "%" is not revoked: %', lock, CASE r.status WHEN 'unknown' THEN 'nobody was ever granted it' ELSE concat_ws(': ', r.status, r.owner) END
        USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    first := first AND r.status = 'retry'; token := r.token; rest := r.remaining_us / 1000000.0 + 0.05;
    COMMIT;                                              -- or the holder would not know
    IF again THEN PERFORM pg_catalog.pg_sleep(rest); END IF;
  END LOOP;
END $$;
COMMENT ON PROCEDURE pglock.revoke_lock IS 'Takes a lock from its holder; answers a token. Waits a TTL at most. CALL it outside a transaction. Owner only.';
