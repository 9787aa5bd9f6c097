package main

import (
	"bufio"
	"context"
	"errors"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
)

// What the director tells a node when it starts it. The environment, because a URL may have a password in it, and everybody
// can read the arguments of a process.
const (
	nodeVariable  = "LEADER_NODE"
	urlVariable   = "LEADER_URL"
	usurpVariable = "LEADER_USURP"
)

// errCurtain ends a node: the director has no more to say to it, or is gone, however that came about.
var errCurtain = errors.New("the director is gone")

// beNode is all that the process of a node does. Its stdout and stdin go to the director.
func beNode() (status int) {
	ctx, cancel := context.WithCancelCause(context.Background())
	lines := make(chan string)
	go func() { // ends with the process
		defer close(lines)
		defer cancel(errCurtain)
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			lines <- in.Text()
		}
	}()
	pool, err := pgxpool.New(ctx, os.Getenv(urlVariable))
	if err == nil {
		defer pool.Close()
		if os.Getenv(usurpVariable) != "" {
			err = usurp(ctx, os.Getenv(nodeVariable), pool)
		} else {
			err = serve(ctx, os.Getenv(nodeVariable), pool, lines)
		}
	}
	if !report(err) {
		return 1
	}
	return 0
}
