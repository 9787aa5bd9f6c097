package advisory

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"

	"github.com/fencedlock/fencedlock/internal/primary"
)

const (
	connectTimeout = 5 * time.Second

	// answerTimeout is how long the server may be silent to who asks for a lock: none of it takes the server any time.
	answerTimeout = 5 * time.Second

	// goodbyeTimeout bounds the orderly end of a connection that holds nothing any more.
	goodbyeTimeout = time.Second

	// marker is a setting that nobody reads but we.
	marker = "pglock.session"
)

// A session is a connection of ours that leads to a backend of its own. That is made sure of by a parameter of the start-up
// packet: a pooler either refuses it, or swallows it, and then the backend does not know it. So nothing is locked, or set,
// at a backend that others use. (To compare pg_backend_pid() over several statements would only be a hint: an idle pooler gives
// the same backend again and again.) Used by one goroutine at a time, but for cut.
type session struct {
	conn *pgx.Conn
	life context.Context    // the socket is closed when it ends
	cut  context.CancelFunc // ends it; may be called by anyone, at any time
	name string             // the value of marker
	pid  int32

	marked bool // it holds a mark: see mark.go
}

// dial connects as the pool of the caller does, its hooks included, but outside that pool.
func (c *Client) dial(ctx context.Context) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	s := &session{name: rand.Text()}
	s.life, s.cut = context.WithCancel(c.life)
	made := false
	defer func() {
		if !made { // it was hung up, or a hook of the pool has panicked
			s.cut()
		}
	}()
	cc, err := c.connConfig(ctx, s)
	if err == nil {
		s.conn, err = primary.Connect(ctx, cc)
	}
	if err != nil {
		s.cut()
		if refusesParameters(err) {
			err = fmt.Errorf("%w: the pooler in between refuses its settings (%w); %s", ErrPooler, err, instead)
		}
		return nil, err
	}
	if hook := c.pool.AfterConnect; hook != nil {
		if err := hook(ctx, s.conn); err != nil {
			s.hangUp()
			return nil, fmt.Errorf("AfterConnect of the pool: %w", err)
		}
		if !s.conn.IsClosed() && s.conn.PgConn().TxStatus() != 'I' { // a lock would hold its snapshot
			s.hangUp()
			return nil, errors.New("AfterConnect of the pool leaves a transaction open: end that in the hook")
		}
	}
	if err := s.identify(ctx); err != nil {
		s.hangUp()
		return nil, err
	}
	made = true
	return s, nil
}

func (c *Client) connConfig(ctx context.Context, s *session) (*pgx.ConnConfig, error) {
	cc := c.pool.ConnConfig.Copy()
	if hook := c.pool.BeforeConnect; hook != nil {
		if err := hook(ctx, cc); err != nil {
			return nil, fmt.Errorf("BeforeConnect of the pool: %w", err)
		}
	}
	// Each host gets its share: with several, a silent one must not use up the time of the next.
	if deadline, ok := ctx.Deadline(); ok {
		share := time.Until(deadline) / time.Duration(1+len(cc.Fallbacks))
		if cc.ConnectTimeout == 0 || cc.ConnectTimeout > share {
			cc.ConnectTimeout = share
		}
	}
	cc.DialFunc = bound(s.life, cc.DialFunc)
	cc.DefaultQueryExecMode = pgx.QueryExecModeExec
	cc.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn()} // no cancel requests: nothing of ours runs for long
	}
	set := cc.RuntimeParams
	if set["application_name"] == "" {
		set["application_name"] = "pglock/advisory"
	}
	set[marker] = s.name
	set["idle_session_timeout"] = "0"
	set["statement_timeout"] = "10s" // a role's own may be too short for any statement
	set["default_transaction_isolation"] = "read committed"
	set["tcp_keepalives_idle"], set["tcp_user_timeout"] = c.cfg.silence() // for a peer that vanished while idle; with a reply on its way
	set["tcp_keepalives_interval"], set["tcp_keepalives_count"] = set["tcp_keepalives_idle"], "3"
	return cc, nil
}

// bound makes connections that end with a life.
func bound(life context.Context, dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		conn, err := dial(ctx, network, addr)
		if err == nil {
			context.AfterFunc(life, func() { conn.Close() }) //nolint:errcheck // its user sees the error
		}
		return conn, err
	}
}

const instead = "connect to PostgreSQL directly for them, or use what works here: transaction locks (advisory.InTx), leases (package pglock)"

// identify learns whom this connection leads to.
func (s *session) identify(ctx context.Context) error {
	var name string
	if err := s.queryRow(ctx, identitySQL).Scan(&s.pid, &name); err != nil {
		return err
	}
	return s.compare(s.pid, name)
}

// check makes sure that it is still the same backend.
func (s *session) check(ctx context.Context) error {
	var pid int32
	var name string
	if err := s.queryRow(ctx, identitySQL).Scan(&pid, &name); err != nil {
		return err
	}
	return s.compare(pid, name)
}

func (s *session) compare(pid int32, name string) error {
	if pid != s.pid || name != s.name {
		return fmt.Errorf("%w: the backend behind this one is not its own: a pooler is in between; %s", ErrPooler, instead)
	}
	return nil
}

func (s *session) queryRow(ctx context.Context, sql string, args ...any) row {
	return s.conn.QueryRow(ctx, sql, args...)
}

// try asks for a lock once, and looks at the backend again when it was granted: in a later transaction, as a transaction
// pooler would have it.
func (s *session) try(ctx context.Context, r request) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var got *bool
	err := s.queryRow(ctx, r.try("pg_try_advisory_lock"), r.args()...).Scan(&got)
	switch {
	case err != nil:
		return false, err
	case got == nil:
		return false, ErrStandby
	case !*got:
		return false, nil
	}
	return true, s.check(ctx)
}

// heldBy looks for who is in the way.
func (s *session) heldBy(ctx context.Context, key Key) (*HeldError, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return heldBy(ctx, s.queryRow, key)
}

// errNotHeld is the server's answer to a release of what this session does not hold.
var errNotHeld = errors.New("the server says that it was not held")

// unlock gives a lock back. Nil: the server says that it did.
func (s *session) unlock(ctx context.Context, r request) error {
	var was bool
	if err := s.queryRow(ctx, "SELECT "+r.call("pg_advisory_unlock"), r.args()...).Scan(&was); err != nil {
		return err
	}
	if !was {
		return errNotHeld
	}
	return nil
}

// watch looks after the session until ctx ends, and then returns nil; else it says why the session is gone. It hears at once what
// the server or the network has to say, and asks every so often.
func (s *session) watch(ctx context.Context, cfg Config) error {
	for next := time.Now().Add(cfg.CheckEvery); ; {
		listening, cancel := context.WithDeadline(ctx, next)
		_, err := s.conn.WaitForNotification(listening)
		cancel()
		switch {
		case s.conn.IsClosed():
			return err
		case ctx.Err() != nil:
			return nil
		case time.Now().Before(next): // a notification, which a hook of the pool has asked for
			continue
		}
		asking, cancel := context.WithTimeout(context.Background(), cfg.answerWithin())
		err = s.check(asking)
		cancel()
		if err != nil {
			return err
		}
		next = time.Now().Add(cfg.CheckEvery)
	}
}

// hangUp closes the connection without waiting for a server that may not answer. What it held is free when the server sees it.
func (s *session) hangUp() {
	s.cut()
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	s.conn.Close(gone) //nolint:errcheck // it is given up
	<-s.conn.PgConn().CleanupDone()
}

// goodbye ends a connection that holds nothing.
func (s *session) goodbye() {
	ctx, cancel := context.WithTimeout(context.Background(), goodbyeTimeout)
	defer cancel()
	s.conn.Close(ctx) //nolint:errcheck // it holds nothing
	s.hangUp()
}

// refusesParameters tells a pooler's refusal of start-up parameters (PgBouncer: protocol violation) from other errors.
func refusesParameters(err error) bool {
	state := sqlState(err)
	return state == "08P01" || state == "0A000"
}
