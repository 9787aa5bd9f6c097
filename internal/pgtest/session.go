package pgtest

import (
	"context"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// A session runs statements of the superuser, each as if over a connection of its own. It keeps one, since to start a
// backend costs more than most statements, and makes another when that one is broken or, unless it queues, busy.
type session struct {
	url    string
	queues bool // nobody waits for long

	mu   sync.Mutex
	conn *pgx.Conn // nil before the first use
}

// do runs f, bounded in time. It uses no test's context: cleanups come here too.
func (s *session) do(f func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if s.queues {
		s.mu.Lock()
	} else if !s.mu.TryLock() { // busy, perhaps for as long as f of another goroutine waits for this one
		conn, err := s.connect(ctx)
		if err != nil {
			return err
		}
		defer conn.Close(context.WithoutCancel(ctx))
		return f(ctx, conn)
	}
	defer s.mu.Unlock()
	if !s.usable(ctx) {
		conn, err := s.connect(ctx)
		if err != nil {
			return err
		}
		s.conn = conn
	}
	return f(ctx, s.conn)
}

func (s *session) connect(ctx context.Context) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(s.url)
	if err != nil {
		return nil, err
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeDescribeExec // it keeps no statement that DISCARD would take away
	return pgx.ConnectConfig(ctx, config)
}

// usable tells whether the kept connection lives, and makes it as new. One that is not is closed.
func (s *session) usable(ctx context.Context) bool {
	if s.conn == nil || s.conn.IsClosed() {
		return false
	}
	if s.conn.PgConn().TxStatus() == 'I' {
		if _, err := s.conn.Exec(ctx, "DISCARD ALL"); err == nil {
			return true
		}
	}
	_ = s.conn.Close(ctx) // it is broken
	return false
}

// close ends the kept connection.
func (s *session) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		_ = s.conn.Close(context.Background()) // it may be broken by now, as the test wished
	}
}

// do is session.do for a test.
func (d *Database) do(t testing.TB, f func(context.Context, *pgx.Conn) error) {
	t.Helper()
	if err := d.session.do(f); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
}
