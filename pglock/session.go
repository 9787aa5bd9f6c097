package pglock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A session is the connection of one line, made anew when it breaks. Used by one goroutine at a time.
type session struct {
	client *Client
	conn   *pgx.Conn
	pooled bool    // conn leads to a transaction pooler
	self   backend // behind conn
	left   backend // behind the connection before, which may still be at work
	ghosts bool    // what was sent before, and given up, may still come to pass
	warned bool    // the last transaction was acknowledged with a warning: see run

	closing []<-chan struct{} // what pgx still does in the background for connections that were dropped
}

// A backend is a server process. Its start tells it from a later process with the same number.
type backend struct {
	pid     int32
	started int64 // in microseconds; 0: a role that a hook has set may not know
}

// A statement is one call, and what to do with each row that it answers.
type statement struct {
	sql  string
	args []any
	row  func(pgx.Rows) error
}

// errUnconfirmed comes where a commit was acknowledged though it may not be on the synchronous standby: its wait was cancelled.
var errUnconfirmed = errors.New("the wait for a synchronous standby was cancelled")

// ready connects if there is no connection. It first ends the backend that was left behind, so that what it was at is either
// done or never will be; then it checks in, so that a hold after a failover begins now and not with the first call.
func (s *session) ready(ctx context.Context) error {
	if s.conn != nil && !s.conn.IsClosed() {
		return nil
	}
	s.drop()
	conn, pooled, err := s.client.dialer.dial(ctx, s.onNotice)
	if err != nil {
		return err
	}
	s.conn, s.pooled = conn, pooled
	if err := s.settleIn(ctx); err != nil {
		s.drop()
		return err
	}
	return nil
}

func (s *session) settleIn(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	s.ghosts = s.ghosts || s.pooled
	if s.left.pid != 0 && !s.pooled {
		s.ghosts = s.ghosts || !s.endBackend(ctx)
	}
	s.left = backend{}
	var capUS, holdUS int64 // the cap is the database's to enforce: it may be raised while this connection lives
	var reason, isolation, timeout string
	err := s.run(ctx, statement{s.client.in(checkInSQL), []any{s.client.seen.Load()}, func(rows pgx.Rows) error {
		return rows.Scan(&capUS, &holdUS, &reason, &isolation, &timeout, &s.self.pid, &s.self.started)
	}})
	if !s.pooled && (sqlState(err) == "57014" && !s.hasOurTimeout(ctx) || mispooled(err)) {
		s.mispooled() // a hook of the pool has set a statement_timeout or an isolation that is not ours
		return s.ready(ctx)
	}
	if err != nil {
		return err
	}
	s.client.heldBack(microseconds(holdUS), reason)
	if timeout != milliseconds(statementTimeout) && !s.pooled {
		s.mispooled() // the parameters were taken and not applied
		return s.ready(ctx)
	}
	return nil
}

// hasOurTimeout tells a statement that was cancelled by a timeout that a hook has set from one that somebody cancelled.
func (s *session) hasOurTimeout(ctx context.Context) bool {
	var timeout string
	err := s.conn.QueryRow(ctx, `SELECT pg_catalog.current_setting('statement_timeout')`, pgx.QueryExecModeExec).Scan(&timeout)
	return err == nil && timeout == milliseconds(statementTimeout)
}

// endBackend ends what the connection before may still be at, and says whether it is certain to have ended.
func (s *session) endBackend(ctx context.Context) bool {
	if s.left.started == 0 {
		return false // this role cannot tell it from a later process with its number
	}
	var ended bool
	err := s.conn.QueryRow(ctx, endBackendSQL, pgx.QueryExecModeExec, s.left.pid, s.left.started).Scan(&ended)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		s.client.log.Warn("pglock: the connection before was not ended", "pid", s.left.pid, "error", err)
		return false
	}
	return err != nil || ended
}

// mispooled drops a connection that does not behave as a session of ours: the next one expects a pooler.
func (s *session) mispooled() {
	s.client.dialer.pooled.Store(true)
	s.drop()
}

// run sends the statements in one round trip and one transaction; nil says that it committed. The rows are read before, so
// nothing is to be believed of them unless run answers nil. With errUnconfirmed it committed here, and perhaps nowhere else.
func (s *session) run(ctx context.Context, statements ...statement) error {
	s.warned = false
	if s.pooled {
		statements = append([]statement{pinIsolation, pinTimeouts}, statements...)
	}
	if err := s.send(ctx, statements); err != nil {
		return err
	}
	if s.warned {
		return errUnconfirmed
	}
	return nil
}

func (s *session) send(ctx context.Context, statements []statement) error {
	if len(statements) == 1 {
		rows, err := s.conn.Query(ctx, statements[0].sql, statements[0].args...)
		return read(rows, err, statements[0].row)
	}
	var b pgx.Batch
	for _, st := range statements {
		b.Queue(st.sql, st.args...)
	}
	results := s.conn.SendBatch(ctx, &b)
	for _, st := range statements {
		rows, err := results.Query()
		if err := read(rows, err, st.row); err != nil {
			results.Close() //nolint:errcheck // the first error is the one to tell
			return err
		}
	}
	return results.Close() // this is the commit's answer
}

func read(rows pgx.Rows, err error, row func(pgx.Rows) error) error {
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if row == nil {
			continue
		}
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// onNotice sees the warning that comes with a commit whose wait for a synchronous standby was cancelled. It is known by the
// routine that gives it: the text depends on the language of the server, and the code is that of any warning.
func (s *session) onNotice(n *pgconn.Notice) {
	if n.Routine == "SyncRepWaitForLSN" {
		s.warned = true
	}
}

// broken says whether the connection is of no more use.
func (s *session) broken() bool { return s.conn == nil || s.conn.IsClosed() }

// drop closes the connection without waiting for its backend, and remembers it.
func (s *session) drop() {
	if s.conn == nil {
		return
	}
	if s.self.pid != 0 {
		s.left = s.self
	}
	gone, cancel := context.WithCancel(context.Background())
	cancel()           // a goodbye would wait for a server that may not answer
	s.conn.Close(gone) //nolint:errcheck // it is given up
	s.closing = append(slices.DeleteFunc(s.closing, isClosed), s.conn.PgConn().CleanupDone())
	s.conn, s.self = nil, backend{}
}

// close ends an idle connection with a goodbye; there is nothing to end behind it.
func (s *session) close() {
	if s.conn == nil {
		return
	}
	if s.conn.IsClosed() { // it broke, and pgx may still be at it
		s.drop()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s.conn.Close(ctx) //nolint:errcheck // it is idle
	s.conn, s.self, s.left = nil, backend{}, backend{}
}

// wait returns when pgx has left every connection that was dropped. The end of the dialer's life bounds it.
func (s *session) wait() {
	for _, done := range s.closing {
		<-done
	}
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

func microseconds(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
