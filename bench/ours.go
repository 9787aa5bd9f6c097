package main

import (
	"context"
	"time"

	"github.com/fencedlock/fencedlock/migrations"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/jackc/pgx/v5/pgxpool"
)

var (
	ours     = oursAs("fencedlock", "a release hands over, or wakes one waiter")
	oursFair = oursAs("fencedlock Fair", "in order over all processes", pglock.Fair())
)

func oursAs(name, note string, opts ...pglock.Option) *System {
	return &System{
		Name: name, Note: note, On: onPostgres, Setup: migrate,
		Open: func(_ context.Context, url string, ttl time.Duration) (Client, error) {
			c, err := pglock.Open(url, pglock.Config{TTL: ttl})
			return oursClient{c, opts}, err
		},
	}
}

// migrate installs the schema as for a server that has no standby, so that a run does not begin with a wait.
func migrate(ctx context.Context, url string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	return migrations.Up(ctx, pool, migrations.SingleNode())
}

type oursClient struct {
	client *pglock.Client
	opts   []pglock.Option
}

func (c oursClient) Acquire(ctx context.Context, name string) (func(context.Context) error, error) {
	l, err := c.client.Acquire(ctx, name, c.opts...)
	if err != nil {
		return nil, err
	}
	return l.Release, nil
}

func (c oursClient) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return c.client.Close(ctx)
}
