// Storage shows a fence for what is not in PostgreSQL: files behind an HTTP service.
//
// Whoever holds the lock "reports" may write the files, and sends its token with each request. In front of the files stands a
// guard, which keeps the highest token it has seen in PostgreSQL, and refuses those below. Client A lets its lease
// lapse, as a suspended process would; client B takes over and writes; the late PUT of client A is answered with 409. Client C
// knows of no lock, sends no token, and is answered with 428.
//
//	go run ./examples/storage
//	go run ./examples/storage -guard=false  # the late PUT gets in; the exit status is 1
//
// It needs PostgreSQL's server binaries or a Docker engine, takes about 4 s, and leaves nothing behind.
//
// Read service.go and client.go first: they are what programs of yours would look like. main.go is the story.
package main
