package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// upserts is the floor: what two durable statements cost that keep nobody out. One caller of a lock that PostgreSQL keeps on its
// disk cannot be faster.
var upserts = &System{
	Name: "two upserts", Note: "no lock: the floor for one caller", On: onPostgres, Kind: floor,
	Setup: func(ctx context.Context, url string) error {
		return execute(ctx, url, `CREATE TABLE upserts (name text PRIMARY KEY, n bigint NOT NULL)`)
	},
	Open: func(ctx context.Context, url string, _ time.Duration) (Client, error) {
		pool, err := openPool(ctx, url)
		return upsertsClient{pool}, err
	},
}

type upsertsClient struct{ pool *pgxpool.Pool }

func (c upsertsClient) Acquire(ctx context.Context, name string) (func(context.Context) error, error) {
	upsert := func(ctx context.Context) error {
		_, err := c.pool.Exec(ctx, `INSERT INTO upserts VALUES ($1, 1) ON CONFLICT (name) DO UPDATE SET n = upserts.n + 1`, name)
		return err
	}
	return upsert, upsert(ctx)
}

func (c upsertsClient) Close() error { c.pool.Close(); return nil }
