package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// advisory is the session lock of PostgreSQL as one would write it down: a connection is held for as long as the lock.
var advisory = &System{
	Name: "advisory lock", Note: "pg_try_advisory_lock on a held connection; if refused, pg_advisory_lock waits in the server",
	On: onPostgres, Kind: session,
	Open: func(ctx context.Context, url string, _ time.Duration) (Client, error) {
		pool, err := openPool(ctx, url)
		return advisoryClient{pool}, err
	},
}

type advisoryClient struct{ pool *pgxpool.Pool }

func (c advisoryClient) Acquire(ctx context.Context, name string) (func(context.Context) error, error) {
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	var got bool
	if err = conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, number(name)).Scan(&got); err == nil && !got {
		_, err = conn.Exec(ctx, `SELECT pg_advisory_lock($1)`, number(name))
	}
	if err != nil {
		conn.Release()
		return nil, err
	}
	return func(ctx context.Context) error {
		defer conn.Release()
		_, err := conn.Exec(ctx, `SELECT pg_advisory_unlock($1)`, number(name))
		return err
	}, nil
}

func (c advisoryClient) Close() error { c.pool.Close(); return nil }
