package main

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/pglock/migrateguard"
)

// What the director tells a replica when it starts it. The environment, because a URL may have a password in it, and
// everybody can read the arguments of a process.
const (
	replicaVariable = "MIGRATE_REPLICA"
	urlVariable     = "MIGRATE_URL"
	actVariable     = "MIGRATE_ACT"
)

// How a replica ends.
const (
	statusServes = 0
	statusFailed = 1
	statusDirty  = 3
)

// beReplica is all that the process of a replica does. Its stdout and stdin go to the director.
func beReplica() (status int) {
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() { // no replica is left behind when the director is gone, however that came about
		io.Copy(io.Discard, os.Stdin) //nolint:errcheck // its end is what matters
		cancel(errors.New("the director is gone"))
	}()
	files := first
	if os.Getenv(actVariable) == "second" {
		files = second
	}
	pool, err := pgxpool.New(ctx, os.Getenv(urlVariable))
	if err == nil {
		defer pool.Close()
		err = start(ctx, os.Getenv(replicaVariable), pool, files)
	}
	report(err)
	switch {
	case err == nil:
		return statusServes
	case errors.Is(err, migrateguard.ErrDirty):
		return statusDirty
	}
	return statusFailed
}
