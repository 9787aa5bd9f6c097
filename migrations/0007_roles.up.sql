-- Who may do what. No role is created and PUBLIC is given nothing: whoever ran these files owns the schema, and hands out
-- three parts to roles of its own. To take one back: REVOKE ALL ON ALL ROUTINES IN SCHEMA pglock FROM the_role, the same
-- ON ALL TABLES, and REVOKE USAGE ON SCHEMA pglock.

-- What the schema was installed with, for those who may not read the guard.
CREATE FUNCTION pglock.installation(OUT cap_us bigint, OUT single_node boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT g.cap_us, g.single_node FROM pglock.guard g WHERE g.one
$$;
COMMENT ON FUNCTION pglock.installation IS 'What the schema was installed with: the longest TTL, and whether for a single node.';

-- Owner only: whoever runs a service. It may call the verbs, the fences and what runs jobs once, and that is all: it cannot lower a
-- fence, touch the guard, read another's acquisition id, or end another's lease. Call it again after an update.
CREATE FUNCTION pglock.grant_locker(role regrole) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  EXECUTE 'GRANT USAGE ON SCHEMA pglock TO ' || role;
  EXECUTE 'GRANT EXECUTE ON PROCEDURE pglock.fence_begin_raised, pglock.fence_begin_held, pglock.fence_begin_stated TO ' || role;
  EXECUTE 'GRANT EXECUTE ON FUNCTION pglock.acquire, pglock.renew, pglock.release, pglock.exchange, pglock.mark, pglock.unmark, pglock.check_in, pglock.holder, pglock.once_start, pglock.once_end, pglock.once_records,
    pglock.fence_credible, pglock.fence_behind, pglock.fence_raise, pglock.fence_raise_all, pglock.fence_check, pglock.fence_whole, pglock.fence_kept,
    pglock.fence_row_lock, pglock.fence_row_tombstone, pglock.fence_row_bury, pglock.fence_row_revive, pglock.fence_state, pglock.installation,
    pglock.verify, pglock.protection, pglock.fence_tree, pglock.fence_root, pglock.fence_row_body, pglock.fence_key_columns TO ' || role;
  EXECUTE 'GRANT SELECT ON pglock.migrations TO ' || role;
  IF NOT has_schema_privilege(role, 'pglock'::regnamespace, 'USAGE') THEN  -- GRANT only warns
    RAISE EXCEPTION 'role % may not use the schema, and % may not allow it', role, current_user
      USING ERRCODE = 'insufficient_privilege', HINT = 'The owner of the schema must GRANT USAGE on it.';
  END IF;
END $$;
COMMENT ON FUNCTION pglock.grant_locker IS 'Lets a role take locks and write under fences. Again after an update. Owner only.';

-- Owner only: whoever protects tables of its own, most often the role of the user's migrations. It can raise the fences of all
-- protected tables, as a locker can raise those of all names, and lower none.
CREATE FUNCTION pglock.grant_protector(role regrole) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  EXECUTE 'GRANT USAGE ON SCHEMA pglock TO ' || role;
  EXECUTE 'GRANT EXECUTE ON FUNCTION pglock.protect, pglock.unprotect, pglock.verify, pglock.protection, pglock.fence_install, pglock.fence_make_rows,
    pglock.fence_drop_rows, pglock.fence_trigger, pglock.fence_tree, pglock.fence_root, pglock.fence_row_body, pglock.fence_key_columns,
    pglock.fence_table, pglock.fence_rows, pglock.fence_row_write TO ' || role;
  IF NOT has_schema_privilege(role, 'pglock'::regnamespace, 'USAGE') THEN
    RAISE EXCEPTION 'role % may not use the schema, and % may not allow it', role, current_user
      USING ERRCODE = 'insufficient_privilege', HINT = 'The owner of the schema must GRANT USAGE on it.';
  END IF;
END $$;
COMMENT ON FUNCTION pglock.grant_protector IS 'Lets a role protect tables that it owns. Again after an update. Owner only.';

-- Owner only: whoever watches. It may read who holds what, in the view inspect, which has no acquisition ids, and what was run, in
-- the view once.
CREATE FUNCTION pglock.grant_auditor(role regrole) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  EXECUTE 'GRANT USAGE ON SCHEMA pglock TO ' || role;
  EXECUTE 'GRANT EXECUTE ON FUNCTION pglock.installation, pglock.holder, pglock.verify, pglock.protection, pglock.fence_tree, pglock.fence_root, pglock.fence_row_body, pglock.fence_key_columns TO ' || role;
  EXECUTE 'GRANT SELECT ON pglock.inspect, pglock.once, pglock.migrations TO ' || role;
  IF NOT has_schema_privilege(role, 'pglock'::regnamespace, 'USAGE') THEN
    RAISE EXCEPTION 'role % may not use the schema, and % may not allow it', role, current_user
      USING ERRCODE = 'insufficient_privilege', HINT = 'The owner of the schema must GRANT USAGE on it.';
  END IF;
END $$;
COMMENT ON FUNCTION pglock.grant_auditor IS 'Lets a role read who holds what, and which jobs were run. Again after an update. Owner only.';

-- Everything of ours is the owner's alone: functions are PUBLIC's when they are made, and ALTER DEFAULT PRIVILEGES may have
-- let others read what is made here, the acquisition ids of leases among it. Only ours: the schema may have other tenants.
DO $$
DECLARE
  relations regclass[] := ARRAY['pglock.migrations', 'pglock.fencing_token', 'pglock.leases', 'pglock.guard', 'pglock.guard_now',
    'pglock.inspect', 'pglock.fences', 'pglock.waits', 'pglock.occurrences', 'pglock.once']::regclass[];
  functions regproc[] := ARRAY['pglock.acquire', 'pglock.renew', 'pglock.release', 'pglock.exchange', 'pglock.obstacle', 'pglock.claim', 'pglock.acquire_slots', 'pglock.revoke', 'pglock.revoke_lock', 'pglock.mark', 'pglock.unmark', 'pglock.wake', 'pglock.bequeath', 'pglock.wait_over', 'pglock.check_in', 'pglock.admit', 'pglock.need_read_committed', 'pglock.bump',
    'pglock.plant', 'pglock.move_token', 'pglock.lineage', 'pglock.raise_token_floor', 'pglock.raise_cap',
    'pglock.declare_single_node', 'pglock.end_hold', 'pglock.holder', 'pglock.occurrence', 'pglock.once_start', 'pglock.once_end', 'pglock.once_records', 'pglock.once_prune',
    'pglock.prune', 'pglock.prune_fences', 'pglock.fence_forgotten', 'pglock.fence_raise', 'pglock.fence_raise_all', 'pglock.fence_check', 'pglock.fence_begin_raised', 'pglock.fence_begin_held', 'pglock.fence_begin_stated', 'pglock.fence_whole', 'pglock.fence_kept', 'pglock.fence_row_lock', 'pglock.fence_row_tombstone',
    'pglock.fence_row_bury', 'pglock.fence_row_revive', 'pglock.fence_row_id', 'pglock.fence_credible', 'pglock.fence_behind', 'pglock.fence_lift', 'pglock.fence_awaited', 'pglock.stated_grant',
    'pglock.fence_state', 'pglock.stated', 'pglock.fence_refuse', 'pglock.fence_not_stated', 'pglock.fence_root', 'pglock.fence_write',
    'pglock.fence_table', 'pglock.fence_rows', 'pglock.fence_row_write', 'pglock.protection', 'pglock.fence_key_columns', 'pglock.fence_row_body',
    'pglock.fence_tree', 'pglock.verify', 'pglock.fence_trigger', 'pglock.fence_drop_rows', 'pglock.fence_make_rows', 'pglock.fence_install',
    'pglock.protect', 'pglock.unprotect',
    'pglock.installation', 'pglock.grant_locker', 'pglock.grant_protector', 'pglock.grant_auditor']::regproc[];
  x record;
BEGIN
  FOR x IN
    SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE ' ELSE 'TABLE ' END || c.oid::regclass AS what, a.grantee
      FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = ANY (relations) AND a.grantee <> c.relowner
    UNION
    SELECT 'ROUTINE ' || p.oid::regprocedure, a.grantee
      FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
      WHERE p.oid = ANY (functions) AND a.grantee <> p.proowner
  LOOP
    EXECUTE 'REVOKE ALL ON ' || x.what || ' FROM ' || CASE x.grantee WHEN 0 THEN 'PUBLIC' ELSE x.grantee::regrole::text END;
  END LOOP;
END $$;
