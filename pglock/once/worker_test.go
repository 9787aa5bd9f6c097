package once_test

import (
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// The worker of the example credits a customer once, whether a job is delivered twice at a time or again later, after it had failed.
func TestTheWorkerOfTheExample(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	pool := d.Pool(t)
	workers := []*WelcomeWorker{{runner(t, d.URL, "a", pool), pool}, {runner(t, d.URL, "b", pool), pool}}
	job := func(id int64) *Job[Welcome] {
		return &Job[Welcome]{ID: id, CreatedAt: tick, Args: Welcome{Customer: 7}}
	}
	if err := workers[0].Work(soon(t), job(1)); err == nil {
		t.Error("the worker has done it without a table")
	}
	d.Exec(t, `CREATE TABLE customers (id bigint, credit int); INSERT INTO customers VALUES (7, 0)`)
	for round := range 2 {
		answers := make(chan error)
		for _, w := range workers {
			for id := range int64(2) {
				go func() { answers <- w.Work(soon(t), job(id+1)) }()
			}
		}
		for range 2 * len(workers) {
			wantErr(t, "Work", happens(t, "a worker answers", answers), nil)
		}
		if credit := pgtest.Query[int](t, d, `SELECT credit FROM customers`); credit != 20 {
			t.Errorf("round %d: a credit of %d for two jobs, want 20", round, credit)
		}
	}
}
