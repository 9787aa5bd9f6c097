DROP FUNCTION pglock.exchange, pglock.unmark, pglock.mark, pglock.wake;
DROP TABLE pglock.waits;
