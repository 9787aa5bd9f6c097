//go:build unix

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/pglock"
)

// What the director tells a worker. The environment, because everybody can read the arguments of a process.
const (
	workerVariable = "INVOICES_WORKER"
	urlVariable    = "INVOICES_URL"
)

const statusRefused = 3 // how a worker ends that the fence has refused

// beWorker is all that the process of a worker does. Its stdout and stdin go to the director.
func beWorker(fenced bool) (status int) {
	ctx, prepare := listen()
	pool, err := pgxpool.New(ctx, os.Getenv(urlVariable))
	if err == nil {
		defer pool.Close()
		err = work(ctx, os.Getenv(workerVariable), pool, prepare, fenced)
	}
	stale, isStale := errors.AsType[*fence.StaleError](err)
	switch {
	case isStale:
		say("REFUSED by the database: it wanted to pay %s with token %d, but %d has been there", stale.Resource, stale.Token, stale.LastToken)
		return statusRefused
	case errors.Is(err, pglock.ErrLost):
		say("has paid all that it wanted to, after its lease was lost")
	case err != nil:
		say("failed: %v", err)
		return 1
	}
	return 0
}

// listen returns a context that ends when the director does, however that came about: no worker is left behind. The function
// waits for the director's word.
func listen() (ctx context.Context, prepare func() error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	word := make(chan string, 1)
	go func() { // ends with the director
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			word <- in.Text()
		}
		cancel(errors.New("the director is gone"))
	}()
	return ctx, func() error {
		select {
		case <-word:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// say tells the director what happens.
func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }
