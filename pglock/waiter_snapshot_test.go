package pglock_test

import (
	"context"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// Whoever waits for a lock asks now and then, and between two questions it is idle: it has no snapshot, which would keep
// VACUUM from cleaning up, and no statement or transaction that goes on.
func TestAWaiterHasNoSnapshotBetweenTwoQuestions(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	take(t, client(t, d), "a")
	ctx, cancel := context.WithCancel(t.Context())
	waiting := acquiring(ctx, waiter(t, d), "a")
	waitsFor(t, d, 0) // it has asked twice

	// The age counts up to the start of the sampling statement, so that a sampler which is slow itself accuses nobody.
	const sample = `SELECT coalesce(max(query_start), 'epoch'), coalesce(string_agg(format('%s with xmin %s for %s: %s', state, backend_xmin,
			statement_timestamp() - query_start, query), E'\n') FILTER (WHERE state LIKE 'idle in transaction%'
			OR (state = 'active' OR backend_xmin IS NOT NULL) AND query_start < statement_timestamp() - interval '500 ms'), '')
		FROM pg_stat_activity WHERE application_name = 'waiter' AND datname = current_database()`
	conn, enough := d.Conn(t), soon(t)
	var last time.Time
	for questions := -1; questions < 5; { // the first sight is no change
		var asked time.Time
		var bad string
		if err := conn.QueryRow(enough, sample).Scan(&asked, &bad); err != nil {
			t.Fatalf("after %d questions: %v", questions, err)
		}
		if bad != "" {
			t.Fatalf("the waiter keeps busy: %s", bad)
		}
		if asked.After(last) {
			last = asked
			questions++
		}
	}
	cancel()
	wantErr(t, "Acquire", happens(t, "Acquire ends with its ctx", waiting).err, pglock.ErrHeld)
}
