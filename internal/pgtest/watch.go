package pgtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// KillBackends ends the backends of the database's sessions for which a condition on pg_stat_activity holds, such as
// "application_name = 'x'" or "true", waits until they are gone, and returns how many there were.
func (d *Database) KillBackends(t testing.TB, where string) int {
	t.Helper()
	d.spoiled.Store(true)
	return Query[int](t, d, fmt.Sprintf(`SELECT count(*) FILTER (WHERE pg_terminate_backend(pid, %d)) FROM pg_stat_activity
		WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND (%s)`,
		patience.Milliseconds()/2, where))
}

// WaitFor blocks until a query of one boolean answers true, for 10 s at most: then it fails the test. It looks again after
// some milliseconds, over a connection of its own. It is for what sends no event, such as somebody who waits for a lock: see
// Waiting.
func (d *Database) WaitFor(t testing.TB, sql string, args ...any) {
	t.Helper()
	d.do(t, func(ctx context.Context, conn *pgx.Conn) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		const look = "look" // planned once: many tests look at once, and should not be what keeps the machine busy
		if _, err := conn.Prepare(ctx, look, sql); err != nil {
			return fmt.Errorf("waiting for %s: %w", sql, err)
		}
		defer conn.Deallocate(context.WithoutCancel(ctx), look) //nolint:errcheck // the connection may be broken by now
		for pause := 2 * time.Millisecond; ; pause = min(pause*3/2, 30*time.Millisecond) {
			var yes bool
			if err := conn.QueryRow(ctx, look, args...).Scan(&yes); err != nil {
				return fmt.Errorf("waiting for %s: %w", sql, err)
			}
			if yes {
				return nil
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return fmt.Errorf("waited 10 s for %s", sql)
			}
		}
	})
}

// Waiting is a query for WaitFor: at least one session of the database waits for a heavyweight lock.
const Waiting = `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`
