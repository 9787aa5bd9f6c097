package main

import (
	"context"
	"database/sql"
	"time"
)

// allisson replays the statements of allisson/go-pglock, which is not to be had as a module: a connection out of a database/sql
// pool for each lock, pg_advisory_lock to wait.
var allisson = &System{
	Name: "replay of allisson/go-pglock", Note: "pg_advisory_lock on a connection of its own out of a database/sql pool; over pgx",
	On: onPostgres, Kind: session,
	Open: func(_ context.Context, url string, _ time.Duration) (Client, error) {
		db, err := openSQL(url)
		return allissonClient{db}, err
	},
}

type allissonClient struct{ db *sql.DB }

func (c allissonClient) Acquire(ctx context.Context, name string) (func(context.Context) error, error) {
	conn, err := c.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.ExecContext(ctx, `SELECT pg_advisory_lock($1)`, number(name)); err != nil {
		conn.Close() //nolint:errcheck // it has failed already
		return nil, err
	}
	return func(ctx context.Context) error {
		defer conn.Close() //nolint:errcheck // back to the pool
		_, err := conn.ExecContext(ctx, `SELECT pg_advisory_unlock($1)`, number(name))
		return err
	}, nil
}

func (c allissonClient) Close() error { return c.db.Close() }
