// Leader shows three nodes of a service, of which one leads at a time, and what becomes of them when the leader is killed.
//
// The leader keeps a ledger: each of its entries is written under the fence, with the token of its term. First a leader that
// resigns is followed at once. Then one is killed (kill -9): the others wait until its lease has run out, and one of them goes on
// where it had stopped. At the end the ledger is read: the terms follow one another in it, and none has written into another.
//
//	go run ./examples/leader
//
// It needs PostgreSQL's server binaries or a Docker engine, takes about 10 s, and leaves nothing behind. With -elect=false every
// node takes itself for the leader; it then ends with exit status 1, and says what is wrong.
//
// Read node.go first: it is what a program of yours would look like. main.go is the story, as a director would tell it; the
// rest is the stage: child processes, a database, and a clock in the margin.
package main
