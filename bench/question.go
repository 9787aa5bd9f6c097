package main

import "context"

// A question is asked of one system or of all.
type question struct {
	id    string // for -only, and in the names of files
	title string
	ask   func(*bench, context.Context) (*answer, error)
}

// An answer is what a question found out.
type answer struct {
	*table
	units []string // the columns of the table, the first of which is drawn
	goals []goal
	notes []string
}

var questions = []question{
	{"one-caller", "acquire and release, uncontended, one goroutine", (*bench).oneCaller},
	{"64-callers", "acquire and release, 64 goroutines, a name each", (*bench).manyCallers},
	{"one-process", "16 goroutines of one process, one name, sections of 1 ms", (*bench).oneProcess},
	{"16-processes", "16 processes, one name, sections of 1 ms", (*bench).manyProcesses},
	{"hand-off", "from the release to the grant in another process", (*bench).handOffAcross},
	{"hand-off-inside", "from the release to the grant in the same process", (*bench).handOffInside},
	{"held", "10,000 leases held, TTL 15 s", (*bench).held},
	{"waiters", "1,000 waiters in one process, one name, empty sections", (*bench).waitersDrain},
	{"poll", "a try of a lock that another holds", (*bench).busyPoll},
	{"crash", "the holder is killed, TTL 2 s", (*bench).crash},
}
