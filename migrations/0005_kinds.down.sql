DROP PROCEDURE pglock.revoke_lock;
DROP FUNCTION pglock.revoke, pglock.acquire_slots, pglock.claim, pglock.obstacle;
