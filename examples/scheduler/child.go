package main

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jonboulle/clockwork"
)

// What the director tells a replica when it starts it. The environment, because a URL may have a password in it, and everybody
// can read the arguments of a process.
const (
	replicaVariable  = "SCHEDULER_REPLICA"
	urlVariable      = "SCHEDULER_URL"
	clockVariable    = "SCHEDULER_CLOCK"
	unlockedVariable = "SCHEDULER_UNLOCKED"
)

// errCurtain ends a replica: the director has no more to say to it, or is gone, however that came about.
var errCurtain = errors.New("the director is gone")

// beReplica is all that the process of a replica does. Its stdout and stdin go to the director.
func beReplica() (status int) {
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() { // ends with the process
		io.Copy(io.Discard, os.Stdin) //nolint:errcheck // it ends when the director says so, or is gone
		cancel(errCurtain)
	}()
	err := start(ctx)
	if errors.Is(err, errCurtain) {
		say("has ended")
		return 0
	}
	say("failed: %v", err)
	return 1
}

func start(ctx context.Context) error {
	by, err := time.ParseDuration(os.Getenv(clockVariable))
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, os.Getenv(urlVariable))
	if err != nil {
		return err
	}
	defer pool.Close()
	clock := skewedClock{clockwork.NewRealClock(), by}
	if os.Getenv(unlockedVariable) != "" {
		return serveUnlocked(ctx, os.Getenv(replicaVariable), clock, pool)
	}
	return serve(ctx, os.Getenv(replicaVariable), clock, pool)
}
