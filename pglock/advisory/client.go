package advisory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// lateClose is the time that Close takes with a ctx that has already ended.
const lateClose = time.Second

// A Client takes session locks. Each lock that is held or waited for has a connection of its own, made with the pool's settings
// and hooks but outside that pool, and named pglock/advisory unless the pool names its own. It must lead to PostgreSQL
// directly: see ErrPooler. One client for a process is enough, and sees to it that the process does not take one lock
// twice. Safe for concurrent use.
type Client struct {
	cfg  Config
	pool *pgxpool.Config // how to connect
	life context.Context // its end cuts every connection
	end  context.CancelFunc

	closing    context.Context // ended when Close begins
	beginClose context.CancelFunc
	closed     chan struct{} // closed when Close is done
	closeErr   error         // of Close, once closed

	mu    sync.Mutex
	turns map[id]*turn       // of the keys that are held or wanted
	locks map[*Lock]struct{} // that are held
	calls sync.WaitGroup     // acquiring calls under way; none begins after closing

	keepers sync.WaitGroup // Lock.keep of each lock
}

// New makes a client that connects as pool does but never takes one of its connections: a pool of one, or one that is busy, is
// no hindrance. It does not block and sends nothing; the pool stays the caller's. A nil pool or a Config that cannot work is
// ErrInvalidOption.
func New(pool *pgxpool.Pool, cfg Config) (*Client, error) {
	if pool == nil {
		return nil, fmt.Errorf("%w: the pool is nil", ErrInvalidOption)
	}
	return newClient(pool.Config(), cfg)
}

// Open is New for those who have a connection string, a URL or key=value settings as pgxpool.ParseConfig takes them, and no
// pool: services on database/sql, or those whose pool goes through a pooler. A string that it does not take is
// ErrInvalidOption.
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
	c := &Client{cfg: cfg, pool: pc, closed: make(chan struct{}), turns: map[id]*turn{}, locks: map[*Lock]struct{}{}}
	c.life, c.end = context.WithCancel(context.Background())
	c.closing, c.beginClose = context.WithCancel(context.Background())
	return c, nil
}

// Close ends every lock of the client with ErrClosed, releases it, and waits for all that the client has running: afterwards no
// goroutine and no connection of it is left. Calls that wait for a lock return ErrClosed. It blocks until the server has
// confirmed, at most until ctx ends (a second, if it had ended before); then it closes the connections, and the error
// matches ErrNotReleased: the server frees their locks when it notices. Closing again waits for the first Close, at most until its
// own ctx ends, and answers the same.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	again := c.closing.Err() != nil
	c.beginClose()
	c.mu.Unlock()
	if again {
		select {
		case <-c.closed:
			return c.closeErr
		case <-ctx.Done():
			return fmt.Errorf("advisory: wait for the first Close: %w", context.Cause(ctx))
		}
	}
	if ctx.Err() != nil { // the usual end of a service: its context ends, and then it closes
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), lateClose)
		defer cancel()
	}
	defer context.AfterFunc(ctx, c.end)()
	c.calls.Wait() // they return at once, since closing has ended
	c.mu.Lock()
	held := slices.Collect(maps.Keys(c.locks))
	c.mu.Unlock()
	for _, l := range held {
		l.cancel(fmt.Errorf("%w: %s ended with it: acquire it again with another client", ErrClosed, l.request.key.describe()))
	}
	c.keepers.Wait()
	var errs []error
	for _, l := range held {
		if errors.Is(l.outcome, ErrNotReleased) {
			errs = append(errs, l.outcome)
		}
	}
	c.end()
	c.closeErr = errors.Join(errs...)
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
