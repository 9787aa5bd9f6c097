// Invoices shows how a lock alone pays twice, and how a fence does not.
//
// Two workers pay invoices; a lock lets one of them do so at a time. Worker A takes it, sees what is due, and is frozen there,
// for longer than its lease lasts. Worker B takes over and pays. Then worker A goes on, in the middle of what it was doing, and
// pays what was due when it looked. Invoice 1 is paid without the fence and invoice 2 with it: by the same workers, under the
// same lock, around the same pause.
//
//	go run ./examples/invoices
//	go run ./examples/invoices -fence=false  # invoice 2 is paid twice, too; the exit status is 1
//
// It needs PostgreSQL's server binaries or a Docker engine, takes about 4 s, and leaves nothing behind.
//
// Read work.go first: it is what a program of yours would look like. main.go is the story, and audit.go its end; the rest is the
// stage: two child processes that can be frozen, and a database.
package main
