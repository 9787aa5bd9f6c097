package pglock_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// A losing try leaves nothing behind in the database: no WAL, no transaction id, no token, no mark on the row. So those
// who wait cost the server no more than reads.
func TestTenThousandLosingTriesLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	const tries, callers = 10_000, 50
	d := quiet(t)
	d.Exec(t, `UPDATE pglock.guard SET cap_us = 3600000000`)
	holder := take(t, client(t, d), "a", pglock.NoRenewal(), pglock.TTL(time.Hour))
	rival := warm(t, pgtest.NewProxy(t, d))
	refused(t, rival, "a") // what the server notes on first sight of a row is not counted
	footprint := func() string {
		t.Helper()
		return pgtest.Query[string](t, d, `SELECT format('WAL %s, next transaction %s, sequence %s %s %s, row %s %s %s',
			pg_current_wal_insert_lsn(), pg_snapshot_xmax(pg_current_snapshot()), s.last_value, s.log_cnt, s.is_called, l.ctid, l.xmin, l.xmax)
			FROM pglock.fencing_token s, pglock.leases l WHERE l.name = 'a'`)
	}
	before, stored := footprint(), row(t, d, "a")

	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range tries / callers {
				l, err := rival.TryAcquire(t.Context(), "a")
				var held *pglock.HeldError
				if !errors.As(err, &held) || held.Token != holder.Token() {
					t.Errorf("TryAcquire = %v, %v, want the holder named", l, err)
					return
				}
			}
		})
	}
	all.Wait()

	if after := footprint(); after != before {
		t.Errorf("%d losing tries moved\n%s to\n%s", tries, before, after)
	}
	if after := row(t, d, "a"); after != stored {
		t.Errorf("the row changed from\n%s to\n%s", stored, after)
	}
	release(t, holder)
	take(t, rival, "a")
	if after := footprint(); after == before {
		t.Error("a grant moves nothing either: nothing was measured")
	}
}
