package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/pglock"
)

const (
	electionName = "ledger-keeper"
	leaseTTL     = 3 * time.Second // short, to see it end soon; the default is 15 s
	entryEvery   = 200 * time.Millisecond
)

// serve is what each node does, word for word. resign has something when the node is to make way.
func serve(ctx context.Context, name string, pool *pgxpool.Pool, resign <-chan string) error {
	locks, err := pglock.New(pool, pglock.Config{Owner: name, TTL: leaseTTL})
	if err != nil {
		return err
	}
	defer closeLocks(locks)
	elector, err := pglock.NewElector(locks, electionName, pglock.ElectorConfig{})
	if err != nil {
		return err
	}
	go func() { // ends with the process
		for range resign {
			if err := elector.Resign(ctx); err != nil {
				say("resigning: %v", err)
			}
		}
	}()
	say("is a candidate")
	return elector.Run(ctx, func(ctx context.Context, lease *pglock.Lease) error {
		return keepLedger(ctx, name, pool, lease.Grant())
	})
}

// keepLedger is what the leader does for as long as it leads.
func keepLedger(ctx context.Context, name string, pool *pgxpool.Pool, grant fence.Grant) error {
	say("leads, token %d", grant.Token)
	for entries := 1; ctx.Err() == nil; entries++ {
		err := fence.Tx(ctx, pool, grant, "ledger", func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO ledger (writer, token) VALUES ($1, $2)`, name, grant.Token)
			return err
		})
		if err != nil && ctx.Err() == nil {
			return err
		}
		if entries == 3 {
			say("has written three entries")
		}
		select {
		case <-ctx.Done():
		case <-time.After(entryEvery):
		}
	}
	say("leads no more: %v", context.Cause(ctx)) // lost, resigned, or shut down
	return ctx.Err()
}

// usurp is what a node does that takes itself for the leader, and its token for granted.
func usurp(ctx context.Context, name string, pool *pgxpool.Pool) error {
	say("leads, without having been elected")
	for entries := 1; ; entries++ {
		if _, err := pool.Exec(ctx, `INSERT INTO ledger (writer, token) VALUES ($1, 0)`, name); err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
		if entries == 3 {
			say("has written three entries")
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(entryEvery):
		}
	}
}

// closeLocks waits a second at most for the database to confirm; what it does not confirm ends with the TTL.
func closeLocks(locks *pglock.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := locks.Close(ctx); err != nil {
		say("closing: %v", err)
	}
}

// report says how a node has ended, and whether that is as it should be.
func report(err error) (well bool) {
	if errors.Is(err, errCurtain) {
		say("has ended")
		return true
	}
	say("failed: %v", err)
	return false
}

// say tells the director what happens.
func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }
