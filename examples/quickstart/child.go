//go:build unix

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/pglock"
)

// What the director tells a worker when it starts it. The environment, because a URL may have a password in it, and
// everybody can read the arguments of a process.
const (
	workerVariable = "QUICKSTART_WORKER"
	urlVariable    = "QUICKSTART_URL"
)

// How a worker ends.
const (
	statusDone    = 0
	statusFailed  = 1
	statusRefused = 3
)

// beWorker is all that the process of a worker does. Its stdout and stdin go to the director.
func beWorker(fenced bool) (status int) {
	ctx, answers := listen()
	err := func() error {
		pool, err := pgxpool.New(ctx, os.Getenv(urlVariable))
		if err != nil {
			return err
		}
		defer pool.Close()
		workOut := func() (int, error) {
			total, ok := <-answers
			if !ok {
				return 0, errors.New("the director is gone")
			}
			return total, nil
		}
		return work(ctx, os.Getenv(workerVariable), pool, workOut, fenced)
	}()
	report(err)
	switch {
	case errors.Is(err, fence.ErrStale):
		return statusRefused
	case err == nil, errors.Is(err, pglock.ErrLost):
		return statusDone
	}
	return statusFailed
}

// listen returns the totals that the director sends, and a context that ends when the director does, however that came about:
// no worker is left behind.
func listen() (context.Context, <-chan int) {
	ctx, cancel := context.WithCancelCause(context.Background())
	answers := make(chan int, 1)
	go func() {
		defer close(answers)
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			if total, err := strconv.Atoi(in.Text()); err == nil {
				answers <- total
			}
		}
		cancel(errors.New("the director is gone"))
	}()
	return ctx, answers
}

// say tells the director what happens.
func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }
