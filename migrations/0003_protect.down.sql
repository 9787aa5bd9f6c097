-- Takes the enforcement away. Refuses while tables are protected: they would be open to everybody, without a word.
DO $$ DECLARE tables text;
BEGIN
  SELECT string_agg(t.tgrelid::regclass::text, ', ' ORDER BY t.tgrelid::regclass::text) INTO tables FROM pg_trigger t
    WHERE t.tgparentid = 0 AND t.tgfoid IN ('pglock.fence_table'::regproc, 'pglock.fence_rows'::regproc) AND t.tgname = 'fencedlock';
  IF tables IS NOT NULL THEN
    RAISE EXCEPTION 'tables are protected: %', tables USING ERRCODE = 'dependent_objects_still_exist',
      HINT = 'Let their owners SELECT pglock.unprotect(the_table) first.';
  END IF;
END $$;
DROP FUNCTION pglock.unprotect, pglock.protect, pglock.fence_install, pglock.fence_make_rows, pglock.fence_drop_rows, pglock.fence_trigger,
  pglock.verify, pglock.fence_tree, pglock.fence_row_body, pglock.fence_key_columns, pglock.protection, pglock.fence_row_write,
  pglock.fence_rows, pglock.fence_table, pglock.fence_write, pglock.fence_root, pglock.fence_not_stated, pglock.fence_refuse,
  pglock.stated, pglock.fence_state;
DROP PROCEDURE pglock.fence_begin_stated;
