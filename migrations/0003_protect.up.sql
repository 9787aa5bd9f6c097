-- Protected tables: their triggers refuse every write of a transaction that has stated no grant, or a stale one, whoever
-- sends it: psql, another language, an old program. Who owns a table installs them: SELECT pglock.protect('invoices').
--
-- The rules that every function keeps:
--   * A trigger raises a fence (see fence_lift), and so locks what it compares. The fence of a table is a row of fences with the
--     table's oid (of the root, where it is a partition or inherits) and the resource 'table', or 'row ' and the hash of a key.
--   * What a session can set is never believed: the stated grant is compared with this transaction and with the fence.
--   * The user's expression is never evaluated with the rights of this schema's owner. It is parsed once, when it is installed,
--     so no search_path can make it mean something else, and evaluated as the table's owner.
--
-- What they raise has an SQLSTATE of its own, the table in the error's fields, and the facts as JSON in its detail:
--   FL001  this transaction has stated no grant
--   FL002  stale: a later token was here
--   FL003  the same, and the lock service of this database has not drawn that token yet: it has lost its memory
--   FL004  the fence belongs to another lock or slot
--   FL005  no grant of this lock can have the token
--   FL006  what the protection does not allow: TRUNCATE where each key has a fence, or a write below a root that is not protected
--
-- What goes around it: a superuser; the table's owner, who can disable or drop triggers, rewrite the table with ALTER TABLE,
-- detach a partition, or drop it; and who has the TRIGGER privilege (GRANT ALL gives it), and can replace triggers. The
-- setting is no secret: a session may state any grant that was made. A subscriber's apply worker states nothing: it is
-- refused by the triggers for each row, and goes around those for each statement. Leave tables unprotected at the
-- subscriber.

-- States the grant that the rest of this transaction is made under. Another one takes its place; ROLLBACK TO a savepoint from
-- before gives it back. fence_raise and fence_check state theirs by themselves. It travels with BEGIN, as fence_begin_held does.
CREATE PROCEDURE pglock.fence_begin_stated(lock text, place int, tok bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
  -- Of a lock that lives here, which is all but always.
  PERFORM FROM pglock.leases x WHERE x.name = lock AND x.slot = place AND tok BETWEEN 1 AND x.token;
  IF FOUND AND set_config('fencedlock.grant', pglock.stated_grant(lock, place, tok), true) <> '' THEN
    RETURN;
  ELSIF NOT pglock.fence_credible(lock, place, tok) THEN
    RAISE EXCEPTION 'token % of lock "%" slot % was never granted', tok, lock, place
      USING ERRCODE = 'FL005', DETAIL = jsonb_build_object('lock', lock, 'slot', place, 'token', tok),
        HINT = 'Take the token of a lease that is held.';
  END IF;
  PERFORM set_config('fencedlock.grant', pglock.stated_grant(lock, place, tok), true);
END $$;

-- The same for a transaction that is open.
CREATE FUNCTION pglock.fence_state(lock text, place int, tok bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  CALL pglock.fence_begin_stated(lock, place, tok);
END $$;
COMMENT ON FUNCTION pglock.fence_state IS 'States the token that the rest of this transaction writes protected tables under.';

-- The grant that this transaction has stated; NULLs if it has not.
CREATE FUNCTION pglock.stated(OUT lock text, OUT place int, OUT tok bigint) LANGUAGE plpgsql AS $$
DECLARE
  said text := current_setting('fencedlock.grant', true);  -- '' where an earlier transaction has stated one
  part text[] := regexp_match(said, '^[0-9]+ [0-9]+ ([0-9]{1,10}) ([0-9]{1,16}) (.+)$');
BEGIN
  IF said = pglock.stated_grant(part[3], part[1]::int, part[2]::bigint) THEN
    lock := part[3]; place := part[1]; tok := part[2];
  END IF;
END $$;

-- Ends the statement that is about to write.
CREATE FUNCTION pglock.fence_refuse(code text, tbl regclass, what text, hint text, facts jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'write to % refused: %', tbl, what
    USING ERRCODE = code, HINT = hint, DETAIL = jsonb_strip_nulls(jsonb_build_object('table', tbl::text) || facts),
      SCHEMA = (SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = tbl),
      TABLE = (SELECT c.relname FROM pg_class c WHERE c.oid = tbl);
END $$;

CREATE FUNCTION pglock.fence_not_stated(tbl regclass) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pglock.fence_refuse('FL001', tbl, 'this transaction has stated no token'
      || CASE WHEN current_setting('fencedlock.grant', true) <> '' THEN '; what the session has set belongs to another one' ELSE '' END,
    'First, in the same transaction, SELECT pglock.fence_state(lock, slot, token) with those of a lease that is held. '
      'By hand, as the owner of schema pglock: CALL pglock.revoke_lock(lock) takes it from its holder and answers with a token.', '{}');
END $$;

-- The table that a partition, or a table that inherits, belongs to: the one that was protected.
CREATE FUNCTION pglock.fence_root(rel oid) RETURNS oid LANGUAGE plpgsql AS $$
DECLARE parent oid;
BEGIN
  LOOP
    SELECT i.inhparent INTO parent FROM pg_inherits i WHERE i.inhrelid = rel ORDER BY i.inhseqno LIMIT 1;
    IF NOT FOUND THEN RETURN rel; END IF;
    rel := parent;
  END LOOP;
END $$;

-- Lets a write pass that was stated under a grant which raises the fence, and refuses every other. The look at the start is
-- what nearly all writes need: a fence that stands at the stated grant is locked, again if need be. It does without
-- fence_root, which is slow, and so without tables that inherit. The lease is looked up as a value, since NOT EXISTS could become a
-- join with all of them.
CREATE FUNCTION pglock.fence_write(tbl regclass, res text, key record) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  root regclass := coalesce(pg_partition_root(tbl), tbl);
  g record;
  v record;
  facts jsonb;
BEGIN
  PERFORM FROM pglock.fences x WHERE x.relation = root AND x.resource = res
    AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = root)
    AND current_setting('fencedlock.grant', true) = pglock.stated_grant(x.name, x.slot, x.last_token)
    AND coalesce((SELECT l.token FROM pglock.leases l WHERE l.name = x.name AND l.slot = x.slot), 0) <= x.last_token FOR SHARE OF x;
  IF FOUND THEN RETURN true; END IF;

  root := pglock.fence_root(tbl);
  g := pglock.stated();
  IF g.lock IS NULL THEN
    PERFORM pglock.fence_not_stated(tbl);
  ELSIF NOT (pglock.protection(root)).is_protected THEN
    PERFORM pglock.fence_refuse('FL006', tbl, format('it belongs to %s, which is not protected', root),
      'Protect ' || root || ', or unprotect this one.', '{}');
  END IF;
  v := pglock.fence_lift(root, res, g.lock, g.place, g.tok);
  IF v.verdict IN ('raised', 'passed') THEN RETURN true; END IF;
  facts := jsonb_build_object('key', key::text, 'lock', g.lock, 'slot', g.place, 'token', g.tok);
  CASE v.verdict
    WHEN 'stale' THEN
      PERFORM pglock.fence_refuse('FL002', tbl, format('token %s of lock "%s" is stale, token %s was here', g.tok, g.lock, v.last_token),
        'Stop: the lock has moved on. Acquire it again for another token.', facts || jsonb_build_object('last_token', v.last_token));
    WHEN 'behind' THEN
      PERFORM pglock.fence_refuse('FL003', tbl, format('token %s of lock "%s" is stale, token %s was here, and its service has not drawn that one yet',
          g.tok, g.lock, v.last_token),
        'Let the owner of the schema SELECT pglock.raise_token_floor(' || v.last_token || ').', facts || jsonb_build_object('last_token', v.last_token));
    WHEN 'other_lock' THEN
      PERFORM pglock.fence_refuse('FL004', tbl, format('it is fenced by lock "%s" slot %s, not by lock "%s" slot %s', v.last_name, v.last_slot, g.lock, g.place),
        'Write it under one lock. To give it to this one for good, as the owner of schema pglock: UPDATE pglock.fences SET name = ' || quote_literal(g.lock)
          || ', slot = ' || g.place || ' WHERE relation = ' || quote_literal(root) || '::regclass AND resource = ' || quote_literal(res), facts || jsonb_build_object('other_lock', v.last_name, 'other_slot', v.last_slot));
    WHEN 'never_granted' THEN
      PERFORM pglock.fence_refuse('FL005', tbl, format('token %s of lock "%s" slot %s was never granted', g.tok, g.lock, g.place),
        'Take the token of a lease that is held.', facts);
  END CASE;
END $$;

-- The trigger of a table that has one fence: once for each statement, before it. Partitions need it for each row as well,
-- since PostgreSQL gives those that are attached later nothing else.
CREATE FUNCTION pglock.fence_table() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE passed boolean := pglock.fence_write(TG_RELID, 'table', NULL);  -- a query would cost more than what it asks
BEGIN
  RETURN NULL;
END $$;

-- The trigger of a table whose keys have fences, before each statement: it refuses early what can never pass. TRUNCATE fires
-- nothing for its rows, whose fences nobody could raise.
CREATE FUNCTION pglock.fence_rows() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
  IF (pglock.stated()).lock IS NULL THEN
    PERFORM pglock.fence_not_stated(TG_RELID);
  ELSIF TG_OP = 'TRUNCATE' THEN
    PERFORM pglock.fence_refuse('FL006', TG_RELID, 'TRUNCATE would pass by the fences of its rows', 'DELETE the rows, or unprotect the table first.', '{}');
  END IF;
  RETURN NULL;
END $$;

-- What the trigger for each row of such a table calls, after the row was written and all other triggers have had their say.
-- It is made by protect and runs as the table's owner. An UPDATE raises the fence of the key that the row had as well.
CREATE FUNCTION pglock.fence_row_write(rel oid, old_key record, new_key record) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
  old_res text := 'row ' || hash_record_extended(old_key, 0) || '.' || hash_record_extended(old_key, 1);
  new_res text := 'row ' || hash_record_extended(new_key, 0) || '.' || hash_record_extended(new_key, 1);
  passed boolean;
BEGIN
  IF old_res IS NOT NULL AND old_res IS DISTINCT FROM new_res THEN passed := pglock.fence_write(rel, old_res, old_key); END IF;
  IF new_res IS NOT NULL THEN passed := pglock.fence_write(rel, new_res, new_key); END IF;
END $$;

-- Whether a table was protected, and by which key (NULL: one fence for the table). The triggers carry it as their argument.
CREATE FUNCTION pglock.protection(tbl regclass, OUT is_protected boolean, OUT key text) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  SELECT CASE WHEN t.tgnargs = 1 THEN convert_from(substring(t.tgargs FOR octet_length(t.tgargs) - 1), getdatabaseencoding()) END INTO key
    FROM pg_trigger t WHERE t.tgrelid = tbl AND t.tgname IN ('fencedlock', 'fencedlock_row') ORDER BY t.tgnargs DESC LIMIT 1;
  is_protected := FOUND;
END $$;

-- The columns that an expression names, or might: the function of the key takes them as parameters.
CREATE FUNCTION pglock.fence_key_columns(tbl regclass, key text) RETURNS TABLE (name name, type text, generated "char")
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
  SELECT a.attname, format_type(a.atttypid, NULL), a.attgenerated FROM pg_attribute a
    WHERE a.attrelid = tbl AND a.attnum > 0 AND NOT a.attisdropped AND (strpos(lower(key), lower(a.attname)) > 0 OR strpos(key, quote_ident(a.attname)) > 0)
$$;

-- The text of the function that the trigger for each row runs: it passes the key's columns to the key's function, which
-- stands beside it, as the types that this one was made for.
CREATE FUNCTION pglock.fence_row_body(tbl regclass, key text, key_function text) RETURNS text
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
  SELECT format('BEGIN
  PERFORM %1$s.fence_row_write(TG_RELID,
    CASE WHEN TG_OP <> ''INSERT'' THEN ROW(%2$s(%3$s)) END,
    CASE WHEN TG_OP <> ''DELETE'' THEN ROW(%2$s(%4$s)) END);
  RETURN NULL;
END', 'pglock'::regnamespace, key_function,
    string_agg(format('OLD.%I::%s', c.name, c.type), ', ' ORDER BY c.name), string_agg(format('NEW.%I::%s', c.name, c.type), ', ' ORDER BY c.name))
  FROM pglock.fence_key_columns(tbl, key) c
$$;

-- A table, and all partitions and tables that inherit from it, itself first.
CREATE FUNCTION pglock.fence_tree(tbl regclass) RETURNS SETOF regclass LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
  WITH RECURSIVE tree AS (SELECT tbl::oid AS oid UNION SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid)
  SELECT t.oid::regclass FROM tree t ORDER BY t.oid <> tbl, t.oid
$$;

-- What is wrong with the protection of a table: nothing, or a line for each trigger that is missing, disabled, not ALWAYS or
-- another than protect makes, on the table and on all partitions and tables that inherit from it. protect again mends all.
-- Run it after a partition was attached, after a column was altered, and after a restore.
CREATE FUNCTION pglock.verify(tbl regclass) RETURNS TABLE (relation regclass, trigger_name name, problem text, cure text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  root regclass := pglock.fence_root(tbl);
  p record := pglock.protection(root);
  again text := 'SELECT ' || 'pglock'::regnamespace || '.protect(' || quote_literal(root) || coalesce(', ' || quote_literal(p.key), '') || ')';
  args bytea := coalesce(convert_to(p.key, getdatabaseencoding()) || decode('00', 'hex'), '');
  statement_function oid := CASE WHEN p.key IS NULL THEN 'pglock.fence_table' ELSE 'pglock.fence_rows' END::regproc;
  row_function oid := 'pglock.fence_table'::regproc;
BEGIN
  IF NOT p.is_protected THEN
    RETURN QUERY SELECT root, NULL::name, 'is not protected'::text, again;
    RETURN;
  ELSIF p.key IS NOT NULL THEN  -- the one that is there, if it is the one that protect would make
    row_function := (SELECT f.oid FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid JOIN pg_language l ON l.oid = f.prolang JOIN pg_class c ON c.oid = root
      WHERE t.tgrelid = root AND t.tgname = 'fencedlock_row' AND l.lanname = 'plpgsql' AND f.prosecdef AND f.proowner = c.relowner
        AND f.proconfig = ARRAY['search_path=pg_catalog, pg_temp']
        AND f.prosrc = pglock.fence_row_body(root, p.key, format('%s.%I', f.pronamespace::regnamespace, f.proname || '_key')));
  END IF;
  RETURN QUERY
  WITH tree AS (
    SELECT c.oid, c.relkind FROM pglock.fence_tree(root) t JOIN pg_class c ON c.oid = t
  ), wanted (oid, name, type, function) AS (
    -- BEFORE INSERT OR DELETE OR UPDATE OR TRUNCATE, and AFTER INSERT OR DELETE OR UPDATE FOR EACH ROW
    SELECT t.oid, 'fencedlock'::name, 62, statement_function FROM tree t WHERE t.relkind <> 'f'
    UNION ALL
    SELECT t.oid, 'fencedlock_row', 29, row_function FROM tree t
      WHERE t.relkind <> 'f' AND (p.key IS NOT NULL OR (SELECT c.relkind FROM pg_class c WHERE c.oid = root) = 'p')
  )
  SELECT w.oid::regclass, w.name, CASE
      WHEN g.oid IS NULL THEN 'has no trigger ' || w.name
      WHEN x.same IS NOT TRUE THEN 'has another trigger ' || w.name || ', or its function was changed'
      WHEN g.tgenabled = 'D' THEN 'has trigger ' || w.name || ' disabled'
      WHEN g.tgenabled <> 'A' THEN 'has trigger ' || w.name || ' not enabled ALWAYS' END, again
    FROM wanted w LEFT JOIN pg_trigger g ON g.tgrelid = w.oid AND g.tgname = w.name
    CROSS JOIN LATERAL (SELECT g.tgtype = w.type AND g.tgfoid = w.function AND g.tgargs = args AND g.tgqual IS NULL
      AND g.tgattr::text = '' AND NOT g.tgdeferrable AS same) x
    WHERE x.same IS NOT TRUE OR g.tgenabled <> 'A'
  UNION ALL
  SELECT t.oid::regclass, NULL, 'is a foreign table, which cannot be protected', 'detach it' FROM tree t WHERE t.relkind = 'f'
  ORDER BY 1, 2;
END $$;
COMMENT ON FUNCTION pglock.verify IS 'What is wrong with the protection of a table, and the cure. No rows: nothing.';

-- Makes one trigger as verify wants it, or makes it again. What a root has for each row, PostgreSQL clones to its partitions,
-- those that are attached later too: such a clone can only be missing its ALWAYS.
CREATE FUNCTION pglock.fence_trigger(tbl regclass, name name, key text, row_function text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  cloned boolean := (SELECT t.tgparentid <> 0 FROM pg_trigger t WHERE t.tgrelid = tbl AND t.tgname = name);  -- NULL: there is none
  args text := coalesce(quote_literal(key), '');
BEGIN
  IF NOT cloned THEN
    EXECUTE format('DROP TRIGGER %I ON %s', name, tbl);
  END IF;
  IF cloned IS NOT TRUE AND name = 'fencedlock' THEN
    EXECUTE format('CREATE TRIGGER fencedlock BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION %s(%s)',
      tbl, CASE WHEN key IS NULL THEN 'pglock.fence_table' ELSE 'pglock.fence_rows' END::regproc, args);
  ELSIF cloned IS NOT TRUE THEN
    EXECUTE format('CREATE TRIGGER fencedlock_row AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION %s(%s)', tbl, row_function, args);
  END IF;
  EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', tbl, name);
END $$;

-- Takes away the triggers for each row, which partitions have from the root, and the functions that protect has made for
-- them.
CREATE FUNCTION pglock.fence_drop_rows(tbl regclass) RETURNS int LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  called record;
  rel regclass;
  gone int := 0;
BEGIN
  SELECT f.oid, f.pronamespace, f.proname, f.proowner INTO called FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid
    WHERE t.tgrelid = tbl AND t.tgname = 'fencedlock_row';
  FOR rel IN SELECT t.tgrelid FROM pg_trigger t
    WHERE t.tgrelid IN (SELECT pglock.fence_tree(tbl)) AND t.tgname = 'fencedlock_row' AND t.tgparentid = 0
  LOOP
    EXECUTE format('DROP TRIGGER fencedlock_row ON %s', rel);
    gone := gone + 1;
  END LOOP;
  IF starts_with(called.proname, 'fencedlock_') AND pg_has_role(called.proowner, 'USAGE') THEN
    FOR called IN SELECT f.oid::regprocedure AS f FROM pg_proc f
      WHERE f.pronamespace = called.pronamespace AND f.proname IN (called.proname, called.proname || '_key')
    LOOP
      EXECUTE format('DROP FUNCTION %s', called.f);
    END LOOP;
  END IF;
  RETURN gone;
END $$;

-- Makes the function that evaluates a key and the one that the trigger for each row runs, for the table's owner and nobody
-- else. The key is parsed here, under the search_path of whoever protects the table, and never again.
CREATE FUNCTION pglock.fence_make_rows(tbl regclass, key text, path text) RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  c pg_class := (SELECT c FROM pg_class c WHERE c.oid = tbl);
  name text := 'fencedlock_' || tbl::oid;
  called text;
  params text := (SELECT string_agg(format('%I %s', k.name, k.type), ', ' ORDER BY k.name) FROM pglock.fence_key_columns(tbl, key) k);
  virtual text := (SELECT string_agg(k.name, ', ') FROM pglock.fence_key_columns(tbl, key) k WHERE k.generated = 'v');
  lf text := chr(10);  -- the key may end in a comment
  type text;
  f text;
BEGIN
  IF params IS NULL OR virtual IS NOT NULL THEN
    RAISE EXCEPTION 'cannot protect % by the key %: %', tbl, key, coalesce('triggers do not see virtual columns: ' || virtual, 'it names no column')
      USING ERRCODE = 'invalid_parameter_value', HINT = 'The key is an expression over columns of the row, such as customer_id or lower(email).';
  ELSIF NOT has_function_privilege(c.relowner, 'pglock.fence_row_write(oid, record, record)', 'EXECUTE') THEN
    RAISE EXCEPTION 'cannot protect %: its owner % may not call what its triggers call', tbl, c.relowner::regrole USING ERRCODE = 'insufficient_privilege',
      HINT = 'Let the owner of the schema SELECT pglock.grant_protector(' || quote_literal(c.relowner::regrole) || ').';
  END IF;
  WHILE EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = c.relnamespace AND p.proname IN (name, name || '_key')) LOOP
    name := name || '_';  -- left behind by a table that was dropped, or restored from another database
  END LOOP;
  called := format('%s.%I', c.relnamespace::regnamespace, name);
  PERFORM set_config('search_path', path, true);
  -- What a table can be partitioned by is what a key must be: immutable, or a session's settings would choose the fence; and hashable.
  EXECUTE format('CREATE TABLE %s (LIKE %s) PARTITION BY HASH ((%s%s))', called, tbl, key, lf);
  EXECUTE format('DROP TABLE %s', called);
  EXECUTE format('SELECT pg_catalog.format_type(pg_catalog.pg_typeof(k.key), NULL) FROM (VALUES (1)) one LEFT JOIN (SELECT (%s%s) AS key FROM ONLY %s WHERE false) k ON true',
    key, lf, tbl) INTO type;
  EXECUTE format('CREATE FUNCTION %s_key(%s) RETURNS %s LANGUAGE sql RETURN (%s%s)', called, params, type, key, lf);
  PERFORM set_config('search_path', 'pg_catalog, pg_temp', true);
  EXECUTE format('CREATE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS %L',
    called, pglock.fence_row_body(tbl, key, called || '_key'));
  FOREACH f IN ARRAY ARRAY[called || '()', (SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = c.relnamespace AND p.proname = name || '_key')] LOOP
    EXECUTE format('COMMENT ON FUNCTION %s IS %L', f, 'made by protect for ' || tbl);
    IF pg_get_userbyid(c.relowner) <> current_user THEN
      EXECUTE format('ALTER FUNCTION %s OWNER TO %s', f, c.relowner::regrole);
    END IF;
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f);
  END LOOP;
  RETURN called;
END $$;

-- protect, with the caller's search_path. The library's own tables are refused by name: their schema may be one that others use too.
CREATE FUNCTION pglock.fence_install(tbl regclass, key text, path text) RETURNS int LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  root regclass := pglock.fence_root(tbl);
  p record := pglock.protection(tbl);
  row_function text := 'pglock.fence_table'::regproc;
  x record;
  made int := 0;
BEGIN
  IF tbl IS NULL OR NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = tbl AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
      AND c.relnamespace <> 'pg_catalog'::regnamespace) THEN
    RAISE EXCEPTION 'cannot protect %: it is not an ordinary or partitioned table', coalesce(tbl::text, 'NULL')
      USING ERRCODE = 'wrong_object_type', HINT = 'Protect the tables below a view, and a foreign table in its own database.';
  ELSIF EXISTS (SELECT FROM pg_class c WHERE c.oid = tbl AND c.relnamespace = 'pglock'::regnamespace
      AND c.relname IN ('migrations', 'leases', 'guard', 'fences', 'waits', 'occurrences')) THEN
    RAISE EXCEPTION 'cannot protect %: it is one of this library''s own tables, which are written without a grant', tbl
      USING ERRCODE = 'wrong_object_type', HINT = 'Protect tables of your own.';
  ELSIF root <> tbl THEN
    RAISE EXCEPTION 'cannot protect %: it belongs to %', tbl, root
      USING ERRCODE = 'wrong_object_type', HINT = 'Protect ' || root || ', which covers all below it.';
  ELSIF p.is_protected AND p.key IS DISTINCT FROM key THEN
    RAISE EXCEPTION '% is protected by %, not by %', tbl, coalesce('the key ' || p.key, 'one fence'), coalesce('the key ' || key, 'one fence')
      USING ERRCODE = 'duplicate_object', HINT = 'Unprotect it first; the fences of the one way mean nothing to the other.';
  END IF;
  FOR x IN SELECT c.oid::regclass AS rel, c.relkind, c.relowner, (SELECT count(*) FROM pg_inherits i WHERE i.inhrelid = c.oid) AS parents
    FROM pglock.fence_tree(tbl) t JOIN pg_class c ON c.oid = t ORDER BY c.oid <> tbl, c.oid
  LOOP
    IF NOT pg_has_role(x.relowner, 'USAGE') THEN
      RAISE EXCEPTION 'cannot protect %: it belongs to role %, not to %', x.rel, x.relowner::regrole, current_user USING ERRCODE = 'insufficient_privilege';
    ELSIF x.relkind = 'f' OR x.parents > 1 THEN
      RAISE EXCEPTION 'cannot protect %: % %', tbl, x.rel, CASE x.relkind WHEN 'f' THEN 'is a foreign table' ELSE 'inherits from several tables' END
        USING ERRCODE = 'wrong_object_type';
    END IF;
  END LOOP;
  EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', tbl);  -- and all below it: nothing is attached from here on

  IF key IS NOT NULL THEN
    IF NOT p.is_protected OR EXISTS (SELECT FROM pglock.verify(tbl) v WHERE v.relation = tbl AND v.trigger_name = 'fencedlock_row') THEN
      PERFORM pglock.fence_drop_rows(tbl);
      row_function := pglock.fence_make_rows(tbl, key, path);
    ELSE
      row_function := (SELECT format('%s.%I', f.pronamespace::regnamespace, f.proname) FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid
        WHERE t.tgrelid = tbl AND t.tgname = 'fencedlock_row');
    END IF;
  END IF;
  IF NOT p.is_protected THEN                             -- from here on verify knows what is wanted
    PERFORM pglock.fence_trigger(tbl, 'fencedlock', key, row_function);
    made := 1;
  END IF;
  FOR pass IN 1..2 LOOP                                  -- the root first, for what its partitions have from it
    FOR x IN SELECT v.* FROM pglock.verify(tbl) v WHERE pass = 2 OR v.relation = tbl LOOP
      PERFORM pglock.fence_trigger(x.relation, x.trigger_name, key, row_function);
      made := made + 1;
    END LOOP;
  END LOOP;
  RETURN made;
END $$;

-- Protects a table from the next write on, and all partitions and tables that inherit from it: by one fence, or by one for
-- each value of a key, which is an expression over the row's columns: customer_id, lower(email), tenant || '/' || id::text.
-- Every row whose key is NULL has the same one. Called again it mends what verify complains of. It answers how many triggers
-- it has made or mended. The caller owns the tables. It waits for transactions that write, and makes later ones wait until
-- it is committed (SHARE ROW EXCLUSIVE): set a lock_timeout. A protected table that is dropped leaves two functions
-- fencedlock_* behind if it had a key: unprotect it first.
CREATE FUNCTION pglock.protect(tbl regclass, key text DEFAULT NULL) RETURNS int LANGUAGE sql
RETURN pglock.fence_install(tbl, key, pg_catalog.current_setting('search_path'));
COMMENT ON FUNCTION pglock.protect IS 'Makes a table refuse every write of a transaction that has stated no live token; with a key, for each of its values apart.';

-- Takes the triggers away, from a table and all below it; how many. The fences stay: protected again in the same way, the
-- table goes on from where it was. Locks as protect does.
CREATE FUNCTION pglock.unprotect(tbl regclass) RETURNS int LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  root regclass := pglock.fence_root(tbl);
  rel regclass;
  gone int;
BEGIN
  IF tbl IS NULL OR root <> tbl THEN
    RAISE EXCEPTION 'cannot unprotect %: it belongs to %', coalesce(tbl::text, 'NULL'), root
      USING ERRCODE = 'wrong_object_type', HINT = 'Unprotect ' || root || '.';
  END IF;
  gone := pglock.fence_drop_rows(tbl);
  FOR rel IN SELECT t.tgrelid FROM pg_trigger t WHERE t.tgrelid IN (SELECT pglock.fence_tree(tbl)) AND t.tgname = 'fencedlock' LOOP
    EXECUTE format('DROP TRIGGER fencedlock ON %s', rel);
    gone := gone + 1;
  END LOOP;
  RETURN gone;
END $$;
COMMENT ON FUNCTION pglock.unprotect IS 'Takes away what protect has made. The fences stay.';
