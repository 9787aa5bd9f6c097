-- Takes the lock protocol away. Refuses while somebody holds a lock, or may hold one that was lost in a restart or failover: its
-- holder would go on trusting it, and a new installation would know nothing of it.
DO $$ DECLARE held text;
BEGIN
  LOCK TABLE pglock.leases IN ACCESS EXCLUSIVE MODE;
  SELECT string_agg(format('%s (%s)', name, owner), ', ') INTO held
    FROM (SELECT name, owner FROM pglock.leases WHERE expires_at > clock_timestamp() ORDER BY name LIMIT 5) x;
  IF held IS NOT NULL THEN
    RAISE EXCEPTION 'locks are held: %', held USING ERRCODE = 'object_in_use', HINT = 'Stop their holders, or wait for the leases to end.';
  END IF;
  IF EXISTS (SELECT FROM pglock.guard_now WHERE other OR no_grants_before > clock_timestamp()) THEN
    RAISE EXCEPTION 'new grants are held back after a restart, failover or restore, and locks may be held that are not known'
      USING ERRCODE = 'object_in_use', HINT = 'Wait until clients are granted locks again, or, if no grant was lost: SELECT pglock.end_hold().';
  END IF;
END $$;
DROP VIEW pglock.inspect;
DROP FUNCTION pglock.holder, pglock.prune, pglock.end_hold, pglock.declare_single_node, pglock.raise_cap, pglock.raise_token_floor, pglock.release, pglock.renew, pglock.acquire, pglock.plant,
  pglock.check_in, pglock.admit, pglock.need_read_committed, pglock.bump, pglock.move_token, pglock.lineage;
DROP VIEW pglock.guard_now;
DROP TABLE pglock.guard, pglock.leases;
DROP SEQUENCE pglock.fencing_token;
DROP TABLE pglock.migrations;

-- The schema goes last, if the up file has made it, nothing else is in it, and it could be made again.
DO $$ BEGIN
  IF obj_description('pglock'::regnamespace, 'pg_namespace') = 'made by fencedlock'
     AND has_database_privilege(current_database(), 'CREATE') THEN
    DROP SCHEMA pglock;
  END IF;
EXCEPTION WHEN dependent_objects_still_exist OR insufficient_privilege THEN NULL;
END $$;
