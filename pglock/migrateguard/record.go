package migrateguard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/pglock"
)

const (
	// recordTimeout bounds what is written about a migration.
	recordTimeout = 30 * time.Second

	dropTimeout = time.Hour

	writes = "SELECT, INSERT, DELETE" // the rights on the version table of who migrates
)

// record writes the version, in golang-migrate's format. It goes on when ctx has ended, since a migration that has run is to be
// recorded. By DELETE and not by TRUNCATE, which would wait for everybody who has read the table in an open transaction.
func (r *runner) record(ctx context.Context, version int, dirty bool) error {
	err := r.underLock(context.WithoutCancel(ctx), recordTimeout, func(ctx context.Context, tx pgx.Tx) error {
		exists, err := r.there(ctx, tx)
		if err != nil {
			return err
		}
		if !exists {
			if _, err := tx.Exec(ctx, "CREATE TABLE IF NOT EXISTS "+r.quoted()+" (version bigint not null primary key, dirty boolean not null)"); err != nil {
				return r.forbidden("", err)
			}
		}
		if _, err := tx.Exec(ctx, "DELETE FROM "+r.quoted()); err != nil || version < 0 && !dirty {
			return r.forbidden(writes, err)
		}
		_, err = tx.Exec(ctx, "INSERT INTO "+r.quoted()+" (version, dirty) VALUES ($1, $2)", version, dirty)
		return r.forbidden(writes, err)
	})
	if err != nil {
		return fmt.Errorf("record version %d in %s: %w", version, r.quoted(), err)
	}
	r.exists = true
	return nil
}

// errOtherServer: a pooler, or a new connection, leads to another server than the one that the lock was taken on, or to a new start of it.
var errOtherServer = errors.New("the server was restarted, or another has taken over, and may lack what was done before")

// there says whether there is a version table. A file may have dropped it, with its schema: without a version the next call would begin anew.
// On another server it may be that of long ago: what is recorded there would be taken for done.
func (r *runner) there(ctx context.Context, tx pgx.Tx) (yes bool, err error) {
	var server string
	err = tx.QueryRow(ctx, `SELECT extract(epoch FROM pg_catalog.pg_postmaster_start_time())::text,
  EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
  WHERE n.nspname::text OPERATOR(pg_catalog.=) $1::text AND c.relname::text OPERATOR(pg_catalog.=) $2::text)`, r.schema, r.table).Scan(&server, &yes)
	if err == nil && server != r.server {
		err = errOtherServer
	}
	return yes, err
}

// drop drops all tables of the current schema, as golang-migrate does, and the version table, wherever it is.
func (r *runner) drop(ctx context.Context) error {
	if r.lease != nil && r.current == r.g.cfg.Lease.Schema {
		return fmt.Errorf("%w: the lease's own tables are in schema %q: give them one of their own (Config.Lease.Schema)", ErrInvalid, r.current)
	}
	return r.underLock(ctx, dropTimeout, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `DO $$ DECLARE t record; BEGIN
  FOR t IN SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema = current_schema() AND table_type = 'BASE TABLE' LOOP
    EXECUTE format('DROP TABLE IF EXISTS %I.%I CASCADE', t.table_schema, t.table_name);
  END LOOP; END $$`)
		if err == nil {
			_, err = tx.Exec(ctx, "DROP TABLE IF EXISTS "+r.quoted()+" CASCADE")
		}
		return err
	})
}

// underLock writes in a transaction that commits only while the lock is held.
func (r *runner) underLock(ctx context.Context, limit time.Duration, write func(context.Context, pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tx, err := r.session.conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"})
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	if err := r.holdIn(ctx, tx, limit); err != nil {
		return err
	}
	if err := write(ctx, tx); err != nil {
		return err
	}
	err = tx.Commit(ctx)
	if err != nil && r.session.conn.IsClosed() {
		err = fmt.Errorf("%w: %w", errUnanswered, err)
	}
	return err
}

// errUnanswered: the connection broke during a commit, which may have come to pass.
var errUnanswered = errors.New("the connection was lost during the commit")

// lookUp reads the state over another connection, once the transaction whose commit was not answered is over: until then it keeps the
// version table from being locked.
func (r *runner) lookUp(ctx context.Context) (s state, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	other, err := r.g.connect(ctx)
	if err != nil {
		return s, err
	}
	defer other.hangUp(ctx)
	tx, err := other.conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"})
	if err != nil {
		return s, err
	}
	defer tx.Rollback(ctx)
	if r.exists {
		if _, err := tx.Exec(ctx, "LOCK TABLE "+r.quoted()+" IN SHARE MODE"); err != nil {
			return s, err
		}
	}
	return r.g.readState(ctx, other.conn, r.schema)
}

// holdIn asks the database for the lock: the lease is ours until the transaction ends, and the session has its lock, which a
// migration may have given up (DISCARD ALL, pg_advisory_unlock_all).
func (r *runner) holdIn(ctx context.Context, tx pgx.Tx, limit time.Duration) error {
	if r.lease != nil {
		err := fence.Hold(ctx, tx, r.lease.Grant(), fence.Limit(limit))
		if errors.Is(err, fence.ErrStale) || errors.Is(err, fence.ErrExpired) || errors.Is(err, pglock.ErrLost) {
			return r.lost(err)
		}
		if err != nil {
			return err
		}
		if err := r.lease.Err(); err != nil {
			return r.lost(err)
		}
	}
	if !r.session.direct {
		return nil
	}
	var held bool
	classid, objid, objsubid := r.key().PgLocks()
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND pid = pg_catalog.pg_backend_pid() AND granted
  AND classid::bigint = $1 AND objid::bigint = $2 AND objsubid = $3)`, int64(classid), int64(objid), objsubid).Scan(&held)
	if err == nil && !held {
		err = r.lost(errors.New("the session has no lock any more: a migration must not run DISCARD ALL or pg_advisory_unlock_all"))
	}
	return err
}
