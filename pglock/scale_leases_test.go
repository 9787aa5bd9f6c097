package pglock_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

const manyTTL = 30 * time.Second

// manyLeases is ten thousand in the long mode.
func manyLeases() int { return pgtest.Rounds(3000, 10_000) }

// takeMany acquires many locks from many goroutines, which share round trips.
func takeMany(t *testing.T, c *pglock.Client) []*pglock.Lease {
	t.Helper()
	const callers = 1000
	leases := make([]*pglock.Lease, manyLeases())
	var wg sync.WaitGroup
	for g := range callers {
		wg.Go(func() {
			for i := g; i < manyLeases(); i += callers {
				l, err := c.TryAcquire(t.Context(), fmt.Sprint("lock ", i))
				if err != nil {
					t.Error(err)
					return
				}
				leases[i] = l
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return leases
}

// The transaction that wrote a row last is part of the row, so it tells what was renewed in one statement.
const (
	writer      = `SELECT xmin::text FROM pglock.leases WHERE name = 'lock 0'`
	newWriter   = `SELECT xmin::text <> $1 FROM pglock.leases WHERE name = 'lock 0'`
	writers     = `SELECT count(DISTINCT xmin::text) FROM pglock.leases`
	oneWriter   = `SELECT count(DISTINCT xmin::text) = 1 FROM pglock.leases`
	heldByClock = `SELECT count(*) FROM pglock.leases WHERE expires_at > clock_timestamp()`
)

// They are renewed too often for the client to listen, which would be more round trips.
func TestTenThousandLeasesRenewInOneStatement(t *testing.T) {
	d := pgtest.DB(t)
	p := pgtest.NewProxy(t, d)
	c := open(t, p.URL(), pglock.Config{TTL: manyTTL, RenewEvery: 1900 * time.Millisecond})
	leases := takeMany(t, c)
	d.WaitFor(t, newWriter, pgtest.Query[string](t, d, writer))
	d.WaitFor(t, oneWriter) // they were acquired one after the other, and go together from the second renewal on at the latest

	before, last := p.Counts(), pgtest.Query[string](t, d, writer)
	d.WaitFor(t, newWriter, last)
	if n := pgtest.Query[int](t, d, writers); n != 1 {
		t.Errorf("%d leases were renewed in %d transactions, want 1", manyLeases(), n)
	}
	if n := p.Counts().Since(before).RoundTrips(); n != 1 {
		t.Errorf("a renewal of %d leases took %d round trips, want 1", manyLeases(), n)
	}

	// Somebody's hand on one row keeps no other from being renewed. That lease is not lost by it, either: it is asked for again.
	conn := d.Conn(t)
	if _, err := conn.Exec(t.Context(), `BEGIN; SELECT FROM pglock.leases WHERE name = 'lock 7' FOR SHARE`); err != nil {
		t.Fatal(err)
	}
	const expiry = `SELECT expires_at::text FROM pglock.leases WHERE name = 'lock 7'`
	seventh := pgtest.Query[string](t, d, expiry)
	d.WaitFor(t, newWriter, pgtest.Query[string](t, d, writer))
	if n := pgtest.Query[int](t, d, writers+` WHERE name <> 'lock 7'`); n != 1 {
		t.Errorf("beside a locked row, %d leases were renewed in %d transactions, want 1", manyLeases()-1, n)
	}
	if now := pgtest.Query[string](t, d, expiry); now != seventh {
		t.Errorf("the locked lease was to expire at %s and is at %s: it was renewed", seventh, now)
	}
	if _, err := conn.Exec(t.Context(), `ROLLBACK`); err != nil {
		t.Error(err)
	}
	d.WaitFor(t, `SELECT expires_at > $1::text::timestamptz FROM pglock.leases WHERE name = 'lock 7'`, seventh)
	for _, l := range leases {
		if !l.Valid() {
			t.Fatalf("%v: %v", l, l.Err())
		}
	}
	if n := pgtest.Query[int](t, d, heldByClock); n != manyLeases() {
		t.Errorf("%d leases are held, want %d", n, manyLeases())
	}
	if err := c.Close(soon(t)); err != nil {
		t.Errorf("Close: %v", err)
	}
	if n := pgtest.Query[int](t, d, heldByClock); n != 0 {
		t.Errorf("%d leases are held after Close", n)
	}
}
