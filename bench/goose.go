package main

import (
	"context"
	"database/sql"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/pressly/goose/v3/lock"
)

// gooseSession is goose's session locker. Its pause between tries is counted in seconds.
var gooseSession = &System{
	Name: "goose session locker", Note: "asks every second, the least it takes", On: onPostgres, Kind: session, Poll: time.Second,
	Open: func(_ context.Context, url string, _ time.Duration) (Client, error) {
		db, err := openSQL(url)
		return gooseSessionClient{db}, err
	},
}

type gooseSessionClient struct{ db *sql.DB }

func (c gooseSessionClient) Acquire(ctx context.Context, name string) (func(context.Context) error, error) {
	l, err := lock.NewPostgresSessionLocker(lock.WithLockID(number(name)), lock.WithLockTimeout(1, 600))
	if err != nil {
		return nil, err
	}
	conn, err := c.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	if err := l.SessionLock(ctx, conn); err != nil {
		conn.Close() //nolint:errcheck // it has failed already
		return nil, err
	}
	return func(ctx context.Context) error {
		defer conn.Close() //nolint:errcheck // back to the pool
		return l.SessionUnlock(ctx, conn)
	}, nil
}

func (c gooseSessionClient) Close() error { return c.db.Close() }

// gooseTable is goose's table locker: a lease with a heartbeat.
var gooseTable = &System{
	Name: "goose table locker", Note: "asks every 25 ms (its default: 5 s)", On: onPostgres, Poll: gooseTablePoll,
	Setup: func(ctx context.Context, url string) error {
		db, err := openSQL(url)
		if err != nil {
			return err
		}
		defer db.Close() //nolint:errcheck // nothing is left to fail
		free, err := (&gooseTableClient{db: db, ttl: usualTTL}).Acquire(ctx, "the first makes the table")
		if err != nil {
			return err
		}
		return free(ctx)
	},
	Open: func(_ context.Context, url string, ttl time.Duration) (Client, error) {
		db, err := openSQL(url)
		return &gooseTableClient{db: db, ttl: ttl}, err
	},
}

const gooseTablePoll = 25 * time.Millisecond

// A gooseTableClient keeps lockers for the next time. One is locked by one goroutine only, so each caller of a name has another.
type gooseTableClient struct {
	db   *sql.DB
	ttl  time.Duration
	free sync.Map // name to *sync.Pool of lock.Locker
}

func (c *gooseTableClient) Acquire(ctx context.Context, name string) (func(context.Context) error, error) {
	p, _ := c.free.LoadOrStore(name, &sync.Pool{})
	idle := p.(*sync.Pool)
	l, ok := idle.Get().(lock.Locker)
	if !ok {
		var err error
		l, err = lock.NewPostgresTableLocker(lock.WithTableLockID(number(name)),
			lock.WithTableLeaseDuration(c.ttl), lock.WithTableHeartbeatInterval(c.ttl/3),
			lock.WithTableLockTimeout(gooseTablePoll, 1<<20), lock.WithTableLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
		if err != nil {
			return nil, err
		}
	}
	if err := l.Lock(ctx, c.db); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		defer idle.Put(l)
		return l.Unlock(ctx, c.db)
	}, nil
}

func (c *gooseTableClient) Close() error { return c.db.Close() }
