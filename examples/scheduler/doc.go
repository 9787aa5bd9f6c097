// Scheduler shows three replicas of a service whose clocks differ by 300 ms, and a job that runs once at each tick all the same.
//
// Every replica has a scheduler of its own, gocron's, with the same job. At each tick all three ask for the lock of the job; one
// runs it. The run takes some milliseconds, so it is over long before the slowest clock gets there: the name is kept for half of
// the time between two ticks. The replica that has run the job is killed (kill -9) between two ticks, and the others go on. At the
// end the runs of each tick are counted in the database.
//
//	cd examples/scheduler && go run .
//
// It needs PostgreSQL's server binaries or a Docker engine, takes about 15 s, and leaves nothing behind. With -lock=false nobody
// asks for a lock; it then ends with exit status 1, and says what is wrong.
//
// Read replica.go first: it is what a program of yours would look like. main.go is the story, as a director would tell it; the
// rest is the stage: child processes, a database, and a clock in the margin.
package main
