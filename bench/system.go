package main

import (
	"context"
	"hash/fnv"
	"io"
	"time"
)

// A System is a way to lock: a library and the server under it.
type System struct {
	Name string // in tables, plots and results
	Note string // how it waits, and whatever else differs from its defaults
	On   string // name of the server
	Kind kind
	TTL  time.Duration // of a lease; default: usualTTL
	Poll time.Duration // the longest time between two questions of a waiter; 0: it is told

	// Settle is how long it takes from the beginning of a wait until the waiter would be told. Default: usualSettle.
	Settle time.Duration

	// Setup makes what all processes share, once.
	Setup func(ctx context.Context, url string) error
	// Open makes what one process has.
	Open func(ctx context.Context, url string, ttl time.Duration) (Client, error)
}

const (
	usualTTL    = 15 * time.Second
	usualSettle = 40 * time.Millisecond
)

type kind int

const (
	lease   kind = iota // ends by itself some time after its holder has vanished
	session             // ends with the connection of its holder
	floor               // is no lock
)

// A Client is one process's access to a System. It is used from several goroutines.
type Client interface {
	// Acquire waits for a lock. What it returns frees it.
	Acquire(ctx context.Context, name string) (func(context.Context) error, error)
	io.Closer
}

// systems are all there are. Ours is the first.
func systems() []*System {
	return []*System{
		ours, oursFair, upserts,
		advisory, allisson, gooseSession, gooseTable, cirello,
		redislockFast, redislockDurable, redsyncFast, redsyncDurable,
		etcd, zookeeper,
	}
}

func system(name string) *System {
	for _, s := range systems() {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// number is the name of a lock where names are numbers.
func number(name string) int64 {
	h := fnv.New64a()
	io.WriteString(h, name) //nolint:errcheck // a hash takes everything
	return int64(h.Sum64() >> 1)
}
