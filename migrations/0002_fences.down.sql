DROP PROCEDURE pglock.fence_begin_held, pglock.fence_begin_raised;
DROP FUNCTION pglock.prune_fences, pglock.fence_kept, pglock.fence_whole, pglock.fence_row_revive, pglock.fence_row_bury, pglock.fence_row_lock, pglock.fence_row_tombstone,
  pglock.fence_row_id, pglock.fence_check, pglock.fence_raise_all, pglock.fence_raise, pglock.stated_grant, pglock.fence_lift, pglock.fence_awaited, pglock.fence_forgotten, pglock.fence_behind, pglock.fence_credible;
DROP TABLE pglock.fences;
