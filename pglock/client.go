package pglock

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/primary"
)

// lateClose is the time that Close takes with a ctx that has already ended.
const lateClose = time.Second

// A Client acquires locks and keeps the leases that it was granted. One for a process is enough: callers share its round trips
// and commits. It has up to three connections for its own, outside any pool, opened when needed and closed after a minute
// without use: one acquires and releases, one only renews, one listens while somebody waits or holds a lease for long; Inspect, List, Prune and an Elector's Leader and Observe use up to two more while they run. Safe for
// concurrent use.
type Client struct {
	cfg    Config
	log    *slog.Logger
	clock  *clock
	sql    struct{ acquire, renew, release, exchange, mark, unmark string }
	dialer *dialer
	reads  *pgxpool.Pool // for Inspect, List and Prune; connects when used
	seen   atomic.Int64  // the latest token that this client ever got

	keeper   *keeper
	work     *workLine
	queues   *queues
	listener *listener
	seldom   time.Duration // seldomPoll, but for tests
	patience time.Duration // deafPatience, but for tests
	bequest  time.Duration // bequestTime, but for tests

	closing    context.Context // ended when Close begins
	beginClose context.CancelFunc
	closed     chan struct{} // closed when Close is done
	closeErr   error         // of Close, once closed
	mu         sync.Mutex
	holdEnd    instant        // of the last hold that was logged
	calls      sync.WaitGroup // acquiring calls under way; none begins after closing
	endAll     context.CancelFunc
	endKeep    context.CancelFunc
	routines   sync.WaitGroup // run of keeper, work and listener
}

// New makes a client that connects as pool does, with its connection settings and its BeforeConnect and AfterConnect hooks
// (one that leaves a transaction open is an error of the calls), but never takes one of its connections: a busy pool cannot cost a lease. It does not block and sends nothing; the pool stays
// the caller's. A nil pool or a Config that cannot work is ErrInvalidOption.
func New(pool *pgxpool.Pool, cfg Config) (*Client, error) {
	if pool == nil {
		return nil, fmt.Errorf("%w: the pool is nil", ErrInvalidOption)
	}
	return newClient(pool.Config(), cfg)
}

// Open is New for those who have a connection string, a URL or key=value settings as pgxpool.ParseConfig takes them, and no
// pool: services on database/sql for one. A string that it does not take is ErrInvalidOption.
func Open(connString string, cfg Config) (*Client, error) {
	pc, err := pgxpool.ParseConfig(connString)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidOption, err)
	}
	return newClient(pc, cfg)
}

func newClient(pc *pgxpool.Config, cfg Config) (*Client, error) {
	cfg, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	lc := pc
	if cfg.ListenURL != "" {
		if lc, err = pgxpool.ParseConfig(cfg.ListenURL); err != nil {
			return nil, fmt.Errorf("%w: Config.ListenURL: %w", ErrInvalidOption, err)
		}
	}
	life, endAll := context.WithCancel(context.Background())
	c := &Client{
		cfg: cfg, log: cfg.Logger, clock: newClock(),
		dialer: &dialer{config: pc, life: life},
		closed: make(chan struct{}), endAll: endAll,
	}
	c.closing, c.beginClose = context.WithCancel(context.Background())
	c.sql.acquire, c.sql.renew, c.sql.release = c.in(acquireSQL), c.in(renewSQL), c.in(releaseSQL)
	if c.reads, err = newReads(pc, c.dialer); err != nil {
		endAll()
		return nil, err
	}
	c.sql.exchange, c.sql.mark, c.sql.unmark = c.in(exchangeSQL), c.in(markSQL), c.in(unmarkSQL)
	c.newLines(lc)
	keep, endKeep := context.WithCancel(life)
	c.endKeep = endKeep
	c.routines.Go(func() { c.keeper.run(keep) })
	c.routines.Go(func() { c.work.run(life) })
	c.routines.Go(func() { c.listener.run(keep) })
	return c, nil
}

// newLines makes what the client's goroutines run. The listener connects with a configuration of its own.
func (c *Client) newLines(listen *pgxpool.Config) {
	c.seldom, c.patience, c.bequest = seldomPoll, deafPatience, bequestTime
	c.keeper, c.work, c.queues = newKeeper(c), newWorkLine(c), newQueues(c)
	c.listener = newListener(c, &dialer{config: listen, life: c.dialer.life})
}

// newReads makes a small pool for what is read now and then. It is not the caller's, so it is there for a client that was
// opened with a connection string too.
func newReads(pc *pgxpool.Config, d *dialer) (*pgxpool.Pool, error) {
	rc := pc.Copy()
	rc.MinConns, rc.MinIdleConns, rc.MaxConns = 0, 0, 2
	rc.MaxConnIdleTime = idleAfter
	rc.ConnConfig.DialFunc = d.bound(rc.ConnConfig.DialFunc)
	rc.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error { return runHook(ctx, conn, pc.AfterConnect) }
	primary.Seek(&rc.ConnConfig.Config)
	rc.ConnConfig.RuntimeParams["client_encoding"] = encoding
	rc.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // nothing is prepared: a pooler may be in between
	return pgxpool.NewWithConfig(context.Background(), rc)
}

// Schema is where the lock tables and functions of the client are: Config.Schema, or its default. It is for what is built on top
// of the client.
func (c *Client) Schema() string { return c.cfg.Schema }

// Close ends every lease of the client with ErrClosed, releases them all in one statement, and waits for everything that the
// client has running: afterwards no goroutine and no connection of it is left. Calls that wait for a lock return ErrClosed.
// It blocks until the database has confirmed, at most until ctx ends (a second, if it had ended before); leases whose release
// was not confirmed by then are named by an error that matches ErrNotReleased, and end by themselves at the end of their TTL.
// Closing again waits for the first Close, at most until its own ctx ends, and answers the same.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	again := c.closing.Err() != nil
	c.beginClose()
	c.mu.Unlock()
	if again {
		select {
		case <-c.closed:
			return c.closeErr
		default:
		}
		select {
		case <-c.closed:
			return c.closeErr
		case <-ctx.Done():
			return fmt.Errorf("pglock: wait for the first Close: %w", context.Cause(ctx))
		}
	}
	c.calls.Wait() // they return at once, since closing has ended
	held := c.keeper.all()
	ends := make([]*surrender, 0, len(held))
	for _, l := range held {
		if l.end(&endedError{ErrClosed, l, " ended with it: acquire the lock again with another client"}) == nil {
			ends = append(ends, l.surrender(nil))
		}
	}
	c.endKeep() // after the leases, so that who waits for a renewal is told ErrClosed and not of a connection
	c.work.surrender(ends...)
	c.work.drain()
	if ctx.Err() != nil { // the usual end of a service: its context ends, and then it closes
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), lateClose)
		defer cancel()
	}
	stop := context.AfterFunc(ctx, c.endAll)
	c.routines.Wait()
	stop()
	c.endAll()
	c.keeper.session.wait()
	c.work.session.wait()
	c.reads.Close()

	if left := c.work.unconfirmed; len(left) > 0 {
		cause := c.work.lastError
		if ctx.Err() != nil {
			cause = context.Cause(ctx)
		}
		c.closeErr = fmt.Errorf("%w: of %q (%d in all): %w", ErrNotReleased, left[:min(len(left), 5)], len(left), cause)
	}
	close(c.closed)
	return c.closeErr
}

// enter begins a call that Close waits for; false says that the client is closing.
func (c *Client) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing.Err() != nil {
		return false
	}
	c.calls.Add(1)
	return true
}
