DROP FUNCTION pglock.once_prune, pglock.once_records, pglock.once_end, pglock.once_start, pglock.occurrence;
DROP VIEW pglock.once;
DROP TABLE pglock.occurrences;
