DROP FUNCTION pglock.grant_locker, pglock.grant_auditor, pglock.installation;
