package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencedlock/fencedlock/pglock"
)

// waitersDrain lets many goroutines of one client wait for one lock, and takes the time from its release until all have had it.
func (b *bench) waitersDrain(ctx context.Context) (*answer, error) {
	t := newTable()
	c, err := pglock.Open(b.servers[onPostgres].url, pglock.Config{})
	if err != nil {
		return nil, err
	}
	defer oursClient{client: c}.Close() //nolint:errcheck // the server goes with it
	for round := range b.rounds {
		took, most, err := b.drain(ctx, c, fmt.Sprint("drained/", round))
		if err != nil {
			return nil, err
		}
		t.add(ours.Name, "drained-s", took.Seconds())
		t.add(ours.Name, "connections", most)
	}
	n, err := b.postgres().countStatements(ctx, func() error {
		_, _, err := b.drain(ctx, c, "drained and counted")
		return err
	})
	switch {
	case err == nil:
		t.add(ours.Name, "statements/grant", n/float64(b.waiters+1))
	case !errors.Is(err, errUncounted):
		return nil, err
	}
	return &answer{
		table: t, units: []string{"drained-s", "connections", "statements/grant"},
		goals: []goal{
			atMost("≤ 2 connections", 2, quantile(t.of(ours.Name, "connections"), 1), 0),
			atMost("≤ 1.2 statements per grant", 1.2, median(t.of(ours.Name, "statements/grant")), 0),
			atMost("drained in ≤ 0.5 s", 0.5, median(t.of(ours.Name, "drained-s")), 0),
		},
		notes: []string{"Connections: those named pglock, the most of a look while all wait and one when all are done. " +
			"Statements: pg_stat_statements, in a round of its own; the acquisition before the queue forms and our looks are in it."},
	}, nil
}

// drain answers how long it took, and the most connections that it saw.
func (b *bench) drain(ctx context.Context, c *pglock.Client, name string) (took time.Duration, connections float64, err error) {
	first, err := c.Acquire(ctx, name)
	if err != nil {
		return 0, 0, err
	}
	done := make(chan error, b.waiters)
	for range b.waiters {
		go func() {
			l, err := c.Acquire(ctx, name)
			if err == nil {
				err = l.Release(ctx)
			}
			done <- err
		}()
	}
	sleep(ctx, 500*time.Millisecond) //nolint:errcheck // until all wait: nobody can be asked, and the next call looks at ctx
	look := func() float64 {
		n, failed := query[float64](ctx, b.postgres(), `SELECT count(*)::float8 FROM pg_stat_activity WHERE application_name = 'pglock'`)
		err = errors.Join(err, failed)
		return n
	}
	connections = look()
	began := now()
	err = errors.Join(err, first.Release(ctx))
	for range b.waiters {
		err = errors.Join(err, <-done)
	}
	took = now().since(began)
	return took, max(connections, look()), err
}
