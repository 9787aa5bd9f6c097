DROP FUNCTION pglock.grant_locker, pglock.grant_protector, pglock.grant_auditor, pglock.installation;
