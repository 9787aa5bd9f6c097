package main

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// redislockPoll is at the eager end: its documentation shows 100 ms.
const redislockPoll = 5 * time.Millisecond

var (
	redislockFast    = redislockOn(onRedis)
	redislockDurable = redislockOn(onRedisAOF)
	redsyncFast      = redsyncOn(onRedis)
	redsyncDurable   = redsyncOn(onRedisAOF)
)

func openRedis(url string) (*redis.Client, error) {
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	o.PoolSize = maxCallers
	return redis.NewClient(o), nil
}

func redislockOn(server string) *System {
	return &System{
		Name: "redislock, " + server, Note: "asks every 5 ms", On: server, Poll: redislockPoll,
		Open: func(_ context.Context, url string, ttl time.Duration) (Client, error) {
			c, err := openRedis(url)
			return redislockClient{c, redislock.New(c), ttl}, err
		},
	}
}

type redislockClient struct {
	*redis.Client
	locks *redislock.Client
	ttl   time.Duration
}

func (c redislockClient) Acquire(ctx context.Context, name string) (func(context.Context) error, error) {
	l, err := c.locks.Obtain(ctx, name, c.ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(redislockPoll)})
	if err != nil {
		return nil, err
	}
	return l.Release, nil
}

func redsyncOn(server string) *System {
	return &System{
		Name: "redsync, " + server, Note: "asks every 50 to 250 ms, its default; one Redis", On: server, Poll: 250 * time.Millisecond,
		Open: func(_ context.Context, url string, ttl time.Duration) (Client, error) {
			c, err := openRedis(url)
			return redsyncClient{c, redsync.New(goredis.NewPool(c)), ttl}, err
		},
	}
}

type redsyncClient struct {
	*redis.Client
	locks *redsync.Redsync
	ttl   time.Duration
}

func (c redsyncClient) Acquire(ctx context.Context, name string) (func(context.Context) error, error) {
	m := c.locks.NewMutex(name, redsync.WithExpiry(c.ttl), redsync.WithTries(1<<20))
	if err := m.LockContext(ctx); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		_, err := m.UnlockContext(ctx)
		return err
	}, nil
}
