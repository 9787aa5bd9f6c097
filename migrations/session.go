package migrations

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/primary"
)

// simple keeps prepared statements out of everything that is sent: behind a transaction pooler the next statement may meet
// another server connection, which has not seen them.
const simple = pgx.QueryExecModeSimpleProtocol

// connect opens a connection of our own from the pool's configuration, hooks included: a pool whose connections are all
// busy must not keep a service from starting.
func connect(ctx context.Context, pool *pgxpool.Pool) (*pgx.Conn, error) {
	cfg := pool.Config() // a copy, so the hooks may write to it
	if cfg.BeforeConnect != nil {
		if err := cfg.BeforeConnect(ctx, cfg.ConnConfig); err != nil {
			return nil, err
		}
	}
	conn, err := primary.Connect(ctx, cfg.ConnConfig)
	if err != nil {
		return nil, err
	}
	if cfg.AfterConnect != nil {
		if err := cfg.AfterConnect(ctx, conn); err != nil {
			hangUp(ctx, conn)
			return nil, err
		}
	}
	return conn, nil
}

// hangUp closes the connection even when ctx is over.
func hangUp(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = conn.Close(ctx) // whatever was open is rolled back by the server
}

// settings makes a transaction ours, whatever the role, the database or a hook has set: it is bounded by ctx and not by a
// timeout, waits only briefly for locks on tables (behind it, every lock call would queue), is not kept open by a process
// that froze, and finds no object of somebody else's first.
const settings = `SELECT pg_catalog.set_config(s.name, s.value, true)
  FROM (VALUES ('statement_timeout', '0'), ('transaction_timeout', '0'), ('lock_timeout', '2s'),
               ('idle_in_transaction_session_timeout', '60s'), ('search_path', 'pg_catalog, pg_temp'),
               ('standard_conforming_strings', 'on'), ('client_encoding', 'UTF8'), ('check_function_bodies', 'on'),
               ('quote_all_identifiers', 'off'),
               ('synchronous_commit', CASE WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'off' THEN 'local'
                                      ELSE pg_catalog.current_setting('synchronous_commit') END)) s(name, value)
  WHERE pg_catalog.current_setting(s.name, true) IS NOT NULL` // not every version has all of them

// inTx runs f in a transaction that commits if f returns nil. Read committed, because what is read under the lock must be
// later than the lock; read-write by name, because a role may be read-only by default.
func inTx(ctx context.Context, conn *pgx.Conn, access pgx.TxAccessMode, f func(pgx.Tx) error) error {
	// In one message, since the role's timeouts hold until the settings do.
	begin := "BEGIN ISOLATION LEVEL READ COMMITTED " + string(access) + ";" + settings
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: begin})
	if err != nil {
		return err
	}
	if err = f(tx); err == nil {
		return tx.Commit(ctx)
	}
	if ctx.Err() != nil || conn.IsClosed() {
		return err // the connection goes, and the transaction with it
	}
	if rerr := tx.Rollback(ctx); rerr != nil {
		return errors.Join(err, rerr)
	}
	return err
}
