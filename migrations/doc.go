// Package migrations installs and updates the library's own schema: the lease table, the fences, the guard, and the SQL
// functions that are the lock protocol.
//
//	if err := migrations.Up(ctx, pool); err != nil {
//		return err
//	}
//
// Every replica of a service may call [Up] when it starts, all at once and on an empty database. What is up to date is
// left alone, so a role that owns nothing can start the service once somebody with the right to create has installed the
// schema. The files go through golang-migrate, all of them in one transaction: they are applied completely or not at all,
// and there is no "dirty" state that somebody would have to repair.
//
// A service on database/sql makes a pool for the call, and closes it.
//
// # What is recorded
//
// The table migrations in the library's own schema (pglock, or what [Schema] says) holds the version of each applied file
// and the SHA-256 of its text as it was written, before it was rendered for a schema. It never meets the
// schema_migrations of the service. [Up] refuses to go on where an applied file had another text ([ErrChanged]).
//
// # By hand
//
// [FS] gives the same files for those who run SQL with a tool of their own. They record themselves. The raw files in the
// source tree do not (psql -1 -v ON_ERROR_STOP=1 -f 0001_leases.up.sql …); [Up] then answers [ErrUnrecorded], with the
// INSERT that records them.
//
// # Roles
//
// The files create no role and give PUBLIC nothing. Whoever installed the schema owns it and hands out the parts:
//
//	SELECT pglock.grant_locker('my_service');  -- may take, renew and release locks and raise fences, nothing else
//	SELECT pglock.grant_auditor('on_call');    -- may read the views inspect and once
//	SELECT pglock.grant_protector('my_owner'); -- may protect tables that it owns: see fence.Protect
package migrations
