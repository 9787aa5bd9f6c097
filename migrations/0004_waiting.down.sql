DROP FUNCTION pglock.exchange, pglock.unmark, pglock.wait_over, pglock.mark, pglock.wake;
DROP TABLE pglock.waits;
