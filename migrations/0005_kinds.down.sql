DROP FUNCTION pglock.revoke, pglock.acquire_slots, pglock.claim, pglock.obstacle;
