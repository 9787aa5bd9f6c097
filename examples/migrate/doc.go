// Migrate shows four replicas of a service that start together, each with the same migrations to run, and what becomes of
// them when one is killed.
//
// One of the migrations builds an index with CREATE INDEX CONCURRENTLY. That waits for every transaction that is older than the
// index, here a report that somebody is reading; a replica that waited in a transaction, or in a blocking lock, would make it wait
// for ever. In the first act a replica that waits is killed, and nothing comes of it. In the second, it is the one
// that migrates: the others say what it has left behind, and the way out of it, which is then taken.
//
//	go run ./examples/migrate
//
// It needs PostgreSQL's server binaries or a Docker engine, takes about 10 s, and leaves nothing behind.
//
// Read replica.go first: it is what a program of yours would look like. main.go is the story, as a director would tell it;
// the rest is the stage: child processes, a database, and a clock in the margin.
package main
