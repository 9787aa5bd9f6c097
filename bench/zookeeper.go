package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
)

var zookeeper = &System{
	Name: "ZooKeeper", Note: "zk.Lock, one session for each process; it watches the node before its own", On: onZooKeeper,
	Open: func(ctx context.Context, url string, ttl time.Duration) (Client, error) {
		conn, events, err := zk.Connect([]string{url}, ttl, zk.WithLogger(silent{}))
		if err != nil {
			return nil, err
		}
		for {
			select {
			case e := <-events:
				if e.State == zk.StateHasSession {
					return zookeeperClient{conn}, nil
				}
			case <-ctx.Done():
				conn.Close()
				return nil, context.Cause(ctx)
			}
		}
	},
}

type silent struct{}

func (silent) Printf(string, ...any) {}

type zookeeperClient struct{ conn *zk.Conn }

// Acquire leaves a goroutine behind if ctx ends: a zk.Lock takes none.
func (c zookeeperClient) Acquire(ctx context.Context, name string) (func(context.Context) error, error) {
	l := zk.NewLock(c.conn, "/bench/"+strings.ReplaceAll(name, "/", "-"), zk.WorldACL(zk.PermAll))
	got := make(chan error, 1)
	go func() { got <- l.Lock() }()
	select {
	case err := <-got:
		return func(context.Context) error { return l.Unlock() }, err
	case <-ctx.Done():
		return nil, errors.Join(errors.New("no lock yet"), context.Cause(ctx))
	}
}

func (c zookeeperClient) Close() error { c.conn.Close(); return nil }
