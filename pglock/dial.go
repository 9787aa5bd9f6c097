package pglock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/primary"
)

const (
	connectTimeout = 5 * time.Second

	// statementTimeout ends a statement of ours that the server does not finish. Its odd value also tells whether the
	// session is as we set it up.
	statementTimeout = 10007 * time.Millisecond

	// lockTimeout ends a wait for a lock. The functions wait for no row; only what people lock by hand can make them.
	lockTimeout = time.Second

	// encoding is that of Go's strings. With another, which a role, a database or a pool may have set, the server would make other
	// names of the same bytes: locks of their own.
	encoding = "UTF8"

	// messages lets the warning through that onNotice waits for.
	messages = "warning"
)

// A dialer makes connections as the pool of the caller makes them, but outside that pool: a busy pool must not cost a lease.
type dialer struct {
	config  *pgxpool.Config
	life    context.Context // its end closes every connection, cancel requests that pgx has in the background included
	pooled  atomic.Bool     // a transaction pooler is in between: no session of ours, no prepared statements
	listens bool            // its user waits for notifications
}

// dial connects, and sets the session up by parameters of the connection itself, which cost no round trip. A transaction
// pooler refuses them; from then on every transaction says what it needs instead.
func (d *dialer) dial(ctx context.Context, onNotice func(*pgconn.Notice)) (conn *pgx.Conn, pooled bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	for {
		pooled = d.pooled.Load()
		cc, err := d.connConfig(ctx, pooled, onNotice)
		if err != nil {
			return nil, pooled, err
		}
		conn, err = primary.Connect(ctx, cc)
		if !pooled && refusesParameters(err) {
			d.pooled.Store(true)
			continue
		}
		if err != nil {
			return nil, pooled, err
		}
		if err := runHook(ctx, conn, d.config.AfterConnect); err != nil {
			conn.Close(ctx) //nolint:errcheck // the hook's error is the one to tell
			return nil, pooled, err
		}
		return conn, pooled, nil
	}
}

// runHook runs AfterConnect of the caller's pool, and looks at what it leaves behind. In a transaction of its own nothing of ours would
// be committed.
func runHook(ctx context.Context, conn *pgx.Conn, hook func(context.Context, *pgx.Conn) error) error {
	if hook == nil {
		return nil
	}
	if err := hook(ctx, conn); err != nil {
		return &hookError{"AfterConnect", err}
	}
	if !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' {
		return &hookError{"AfterConnect", errors.New("it leaves a transaction open: end that in the hook")}
	}
	if conn.PgConn().ParameterStatus("client_encoding") == encoding {
		return nil
	}
	_, err := conn.Exec(ctx, "SET client_encoding = '"+encoding+"'", pgx.QueryExecModeExec)
	return err
}

func (d *dialer) connConfig(ctx context.Context, pooled bool, onNotice func(*pgconn.Notice)) (*pgx.ConnConfig, error) {
	cc := d.config.ConnConfig.Copy()
	if d.config.BeforeConnect != nil {
		if err := d.config.BeforeConnect(ctx, cc); err != nil {
			return nil, &hookError{"BeforeConnect", err}
		}
	}
	if cc.RuntimeParams["application_name"] == "" {
		cc.RuntimeParams["application_name"] = "pglock"
	}
	// Each host gets its share: with several, a silent one must not use up the time of the next.
	if deadline, ok := ctx.Deadline(); ok {
		share := time.Until(deadline) / time.Duration(1+len(cc.Fallbacks))
		if cc.ConnectTimeout == 0 || cc.ConnectTimeout > share {
			cc.ConnectTimeout = share
		}
	}
	cc.DialFunc = d.bound(cc.DialFunc)
	if d.listens {
		cc.OnNotification = nil // pgx's own, which WaitForNotification needs, and not the caller's
	}
	before := cc.OnNotice
	cc.OnNotice = func(conn *pgconn.PgConn, n *pgconn.Notice) {
		onNotice(n)
		if before != nil {
			before(conn, n)
		}
	}
	cc.RuntimeParams["client_encoding"] = encoding
	if pooled {
		cc.DefaultQueryExecMode = pgx.QueryExecModeExec
		return cc, nil
	}
	cc.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	cc.StatementCacheCapacity = 16
	cc.RuntimeParams["default_transaction_isolation"] = "read committed"
	cc.RuntimeParams["default_transaction_read_only"] = "off"
	cc.RuntimeParams["statement_timeout"] = milliseconds(statementTimeout)
	cc.RuntimeParams["lock_timeout"] = milliseconds(lockTimeout)
	cc.RuntimeParams["idle_session_timeout"] = "0"
	cc.RuntimeParams["client_min_messages"] = messages
	return cc, nil
}

// bound makes connections that end with the client.
func (d *dialer) bound(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stop := context.AfterFunc(d.life, cancel)
		defer stop()
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		b := &boundConn{Conn: conn}
		b.stop = context.AfterFunc(d.life, func() { conn.Close() }) //nolint:errcheck // its user sees the error
		return b, nil
	}
}

type boundConn struct {
	net.Conn
	stop func() bool
}

func (c *boundConn) Close() error {
	c.stop()
	return c.Conn.Close()
}

// refusesParameters tells a pooler's refusal of start-up parameters (PgBouncer: protocol violation) from other errors.
func refusesParameters(err error) bool {
	var pe *pgconn.PgError
	if !errors.As(err, &pe) {
		return false
	}
	switch pe.Code {
	case "08P01", "0A000", "42704":
		return true
	}
	return false
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%dms", d.Milliseconds()) }
