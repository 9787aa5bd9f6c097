// Quickstart shows what a lock alone cannot do, and a fence can.
//
// Two workers want one lock. The first is frozen while it holds it, for longer than its lease lasts: a suspended virtual
// machine, a long pause of a garbage collector and a closed laptop look just like that. The second takes over and does the
// work. Then the first goes on, in the middle of what it was doing, and writes. The database refuses.
//
//	go run ./examples/quickstart
//	go run ./examples/quickstart -fence=false  # the late write gets in; the exit status is 1
//
// It needs PostgreSQL's server binaries or a Docker engine, takes about 4 s, and leaves nothing behind.
//
// Read work.go first: it is what a program of yours would look like. main.go is the story, as a director would tell it; the
// rest is the stage: two child processes, a database, and a clock in the margin.
package main
