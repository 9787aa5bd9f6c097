package migrateguard

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"

	"github.com/fencedlock/fencedlock/internal/primary"
	"github.com/fencedlock/fencedlock/pglock/advisory"
)

const (
	connectTimeout = 10 * time.Second

	// cancelTimeout is how long the server may take to answer after it was asked to cancel a statement.
	cancelTimeout = 5 * time.Second

	// unlockTimeout bounds the orderly end of a session.
	unlockTimeout = 5 * time.Second

	// encoding is that of the session, whatever the role, the pool, a hook or a file has set: it is the files' own, and a schema has one
	// name in it. In another it would have another lock.
	encoding = "UTF8"

	// marker is a setting that nobody reads but we.
	marker = "pglock.session"
)

// A session is the connection that the SQL goes over. It is direct if it leads to a backend of its own: that is made sure of by
// a parameter of the start-up packet, which a pooler either refuses, or swallows, and then the backend does not know it.
type session struct {
	conn   *pgx.Conn
	direct bool
	locked *advisory.Key // the lock that it holds

	user, role, path string // session_authorization, role and search_path, as the hooks have left them
	set              string // all that was set before the first file, as JSON
}

// connect makes a connection as the pool does, its hooks included, but outside that pool.
func (g *Guard) connect(ctx context.Context) (*session, error) {
	name := rand.Text()
	conn, err := g.dial(ctx, name)
	if state := sqlState(err); state == "08P01" || state == "0A000" { // the pooler in between refuses the parameters
		conn, err = g.dial(ctx, "")
	}
	if err != nil {
		return nil, err
	}
	s := &session{conn: conn}
	if s.direct, err = s.ownBackend(ctx, name); err != nil || !s.direct {
		return s.orHangUp(ctx, err)
	}
	// So that the backend ends when its client does, even in the middle of a long statement. Not every system can do that.
	if _, err = conn.Exec(ctx, "SET client_connection_check_interval = '1s'"); sqlState(err) == "22023" {
		err = nil
	}
	return s.orHangUp(ctx, err)
}

func (g *Guard) dial(ctx context.Context, name string) (*pgx.Conn, error) {
	cc := g.pool.ConnConfig.Copy()
	if hook := g.pool.BeforeConnect; hook != nil {
		if err := hook(ctx, cc); err != nil {
			return nil, fmt.Errorf("BeforeConnect of the pool: %w", err)
		}
	}
	if cc.ConnectTimeout == 0 {
		cc.ConnectTimeout = connectTimeout
	}
	cc.DefaultQueryExecMode = pgx.QueryExecModeExec // nothing is prepared: a pooler may be in between
	cc.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: cancelTimeout}
	}
	set := cc.RuntimeParams
	if set["application_name"] == "" {
		set["application_name"] = "pglock/migrateguard"
	}
	set["client_encoding"] = encoding
	if name != "" {
		set[marker] = name
		// For a client that vanished while the backend works, or is idle.
		set["tcp_keepalives_idle"], set["tcp_keepalives_interval"], set["tcp_keepalives_count"] = "2", "2", "3"
		set["tcp_user_timeout"] = "8000"
	}
	noStdin := refuseStdin(cc)
	conn, err := primary.Connect(ctx, cc)
	if err != nil {
		return nil, err
	}
	kept := false
	defer func() {
		if !kept {
			closeConn(ctx, conn)
		}
	}()
	if hook := g.pool.AfterConnect; hook != nil {
		if err := hook(ctx, conn); err != nil {
			return nil, fmt.Errorf("AfterConnect of the pool: %w", err)
		}
		if !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' { // what is read under the lock would be older than the lock
			return nil, errors.New("AfterConnect of the pool leaves a transaction open: end that in the hook")
		}
	}
	if conn.PgConn().ParameterStatus("client_encoding") != encoding {
		if _, err := conn.Exec(ctx, "SET client_encoding = '"+encoding+"'"); err != nil {
			return nil, err
		}
	}
	kept, *noStdin = true, true
	return conn, nil
}

// ownBackend tells whether the backend is the one that the start-up packet went to.
func (s *session) ownBackend(ctx context.Context, name string) (own bool, err error) {
	err = s.conn.QueryRow(ctx, "SELECT coalesce(pg_catalog.current_setting('"+marker+`', true), '') OPERATOR(pg_catalog.=) $1,
  pg_catalog.current_setting('session_authorization'), pg_catalog.current_setting('role'), pg_catalog.current_setting('search_path'),
  (SELECT coalesce(pg_catalog.json_object_agg(name, setting), '{}') FROM pg_catalog.pg_settings
    WHERE source OPERATOR(pg_catalog.=) 'session' AND name OPERATOR(pg_catalog.!~) '^transaction_')::text`, name).
		Scan(&own, &s.user, &s.role, &s.path, &s.set)
	return own, err
}

// moveBack undoes what a file has set for those after it, and for the record of its version: by whom, where names are looked for, and
// how text is read. Behind a pooler that is all that the file has set: the backend is lent to other clients next, who must not find, say,
// their triggers off.
func (s *session) moveBack(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	var b pgx.Batch // one transaction, and so one backend
	if !s.direct {
		b.Queue("RESET ALL")
	}
	b.Queue(`SELECT pg_catalog.set_config(s.name, s.value, false)
  FROM (VALUES ('session_authorization', $1), ('role', $2), ('search_path', $3), ('client_encoding', $4)) s(name, value)
  WHERE pg_catalog.current_setting(s.name) OPERATOR(pg_catalog.<>) s.value`, s.user, s.role, s.path, encoding)
	if !s.direct {
		b.Queue("SELECT pg_catalog.set_config(key, value, false) FROM pg_catalog.json_each_text($1::pg_catalog.json)", s.set)
	}
	return s.conn.SendBatch(ctx, &b).Close()
}

func (s *session) orHangUp(ctx context.Context, err error) (*session, error) {
	if err != nil {
		s.hangUp(ctx)
		return nil, err
	}
	return s, nil
}

// tryLock asks for the session lock once. By try, because a waiter in a blocking call would hold a snapshot.
func (s *session) tryLock(ctx context.Context, key advisory.Key) (got bool, err error) {
	n, _ := key.Int64()
	err = s.conn.QueryRow(ctx, "SELECT pg_catalog.pg_try_advisory_lock($1::bigint)", n).Scan(&got)
	if err == nil && got {
		s.locked = &key
	}
	return got, err
}

// unlock gives the session lock back, and checks the answer. In a transaction that a file has left, which may refuse all statements, it
// leaves that to the end of the session.
func (s *session) unlock(ctx context.Context) error {
	if s.locked == nil || !s.conn.IsClosed() && s.conn.PgConn().TxStatus() != 'I' {
		return nil
	}
	n, _ := s.locked.Int64()
	s.locked = nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockTimeout)
	defer cancel()
	var was bool
	err := s.conn.QueryRow(ctx, "SELECT pg_catalog.pg_advisory_unlock($1::bigint)", n).Scan(&was)
	if err == nil && !was {
		err = errors.New("the session did not hold its lock any more")
	}
	return err
}

// hangUp closes the connection, and whatever the session holds goes with it.
func (s *session) hangUp(ctx context.Context) { closeConn(ctx, s.conn) }

func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockTimeout)
	defer cancel()
	conn.Close(ctx) //nolint:errcheck // nothing is left to be confirmed
	<-conn.PgConn().CleanupDone()
}
