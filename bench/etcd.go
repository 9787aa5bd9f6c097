package main

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

var etcd = &System{
	Name: "etcd", Note: "concurrency.Mutex, a session for each caller; it watches the key before its own", On: onEtcd,
	Settle: 150 * time.Millisecond, // a watcher that begins at a past revision is looked after every 100 ms, until it has caught up
	Open: func(_ context.Context, url string, ttl time.Duration) (Client, error) {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
		return &etcdClient{client: c, ttl: ttl}, err
	},
}

// An etcdClient keeps sessions for the next time. Two mutexes of one session and name are one, so each caller has another session.
type etcdClient struct {
	client *clientv3.Client
	ttl    time.Duration
	mu     sync.Mutex
	idle   []*concurrency.Session
}

func (c *etcdClient) session() (s *concurrency.Session, err error) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		s, c.idle = c.idle[n-1], c.idle[:n-1]
	}
	c.mu.Unlock()
	if s == nil {
		s, err = concurrency.NewSession(c.client, concurrency.WithTTL(max(1, int(c.ttl.Seconds()))))
	}
	return s, err
}

func (c *etcdClient) Acquire(ctx context.Context, name string) (func(context.Context) error, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	m := concurrency.NewMutex(s, "/bench/"+name)
	if err := m.Lock(ctx); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		err := m.Unlock(ctx)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.idle = append(c.idle, s)
		return err
	}, nil
}

func (c *etcdClient) Close() error { return c.client.Close() }
