package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencedlock/fencedlock/pglock"
)

// busyPoll measures what a try leaves behind on the server that finds the lock held. The server writes a little by itself now and
// then, so the same time without a try is measured beside it.
func (b *bench) busyPoll(ctx context.Context) (*answer, error) {
	t := newTable()
	var clients [2]*pglock.Client
	for i := range clients {
		c, err := pglock.Open(b.servers[onPostgres].url, pglock.Config{TTL: 30 * time.Second})
		if err != nil {
			return nil, err
		}
		defer oursClient{client: c}.Close() //nolint:errcheck // the server goes with it
		clients[i] = c
	}
	p := b.postgres()
	for round := range b.rounds {
		name := fmt.Sprint("polled/", round)
		held, err := clients[0].TryAcquire(ctx, name, pglock.NoRenewal()) // a renewal would write
		if err != nil {
			return nil, err
		}
		tries := func() error {
			for range b.polls {
				if l, err := clients[1].TryAcquire(ctx, name); !errors.Is(err, pglock.ErrHeld) {
					return fmt.Errorf("a try of a lock that is held: %v, %w", l, err)
				}
			}
			return nil
		}
		if err := tries(); err != nil { // the first tries connect, and read the catalog
			return nil, err
		}
		began := now()
		if err := p.leaves(ctx, t, ours.Name, tries); err != nil {
			return nil, err
		}
		took := now().since(began)
		t.add(ours.Name, "µs/try", float64(took.Microseconds())/float64(b.polls))
		if err := p.leaves(ctx, t, "as long without a try", func() error { return sleep(ctx, took) }); err != nil {
			return nil, err
		}
		if err := held.Release(ctx); err != nil {
			return nil, err
		}
	}
	return &answer{
		table: t, units: []string{"WAL-bytes", "xids", "µs/try"},
		goals: []goal{
			atMost("0 bytes of WAL", 0, median(t.of(ours.Name, "WAL-bytes")), 0),
			atMost("no transaction id", 0, median(t.of(ours.Name, "xids")), 0),
		},
		notes: []string{fmt.Sprintf("For %d tries together.", b.polls)},
	}, nil
}

// leaves notes how much WAL is written and how many transaction ids are used while f runs.
func (p *postgres) leaves(ctx context.Context, t *table, label string, f func() error) error {
	look := func() (wal, xid float64, err error) {
		err = p.conn.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0')::float8, pg_snapshot_xmax(pg_current_snapshot())::text::float8`).Scan(&wal, &xid)
		return wal, xid, err
	}
	wal, xid, err := look()
	if err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	walAfter, xidAfter, err := look()
	t.add(label, "WAL-bytes", walAfter-wal)
	t.add(label, "xids", xidAfter-xid)
	return err
}
