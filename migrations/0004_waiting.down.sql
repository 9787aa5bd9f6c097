DROP FUNCTION pglock.exchange, pglock.unmark, pglock.wait_over, pglock.mark, pglock.wake, pglock.bequeath;
DROP TABLE pglock.waits;
