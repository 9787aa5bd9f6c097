package pglock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// quiet is a server on which nobody but the test writes a log or draws a transaction id.
func quiet(t *testing.T) *pgtest.Database {
	t.Helper()
	_, d := pgtest.OwnServer(t, pgtemp.Options{Settings: map[string]string{
		"autovacuum": "off", "wal_level": "minimal", "max_wal_senders": "0", "checkpoint_timeout": "1d",
	}})
	return d
}

// A cost is what a call took: round trips by the messages on the wire, and what the server wrote.
type cost struct {
	roundTrips, answers, parses, transactions int
	log                                       bool // something was written to the write-ahead log
}

// costOf measures a call that goes through the proxy.
func costOf(t *testing.T, d *pgtest.Database, p *pgtest.Proxy, call func()) cost {
	t.Helper()
	const written = `SELECT ARRAY[pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_current_wal_insert_lsn() - '0/0']::bigint[]`
	messages, before := p.Counts(), pgtest.Query[[]int64](t, d, written)
	call()
	c, after := p.Counts().Since(messages), pgtest.Query[[]int64](t, d, written)
	return cost{
		roundTrips: c.RoundTrips(), answers: c.ToClient['Z'], parses: c.ToServer['P'],
		transactions: int(after[0] - before[0]), log: after[1] != before[1],
	}
}

// warm is a client through a proxy whose connections have seen every call. It renews nothing by itself for ten seconds.
func warm(t *testing.T, p *pgtest.Proxy) *pglock.Client {
	t.Helper()
	c := open(t, with(t, p.URL(), "synchronous_commit", "on"), pglock.Config{TTL: 30 * time.Second})
	l := take(t, c, "warm")
	renew(t, l)
	release(t, l)
	return c
}

func TestEachCallIsOneRoundTripAndOneCommit(t *testing.T) {
	t.Parallel()
	d := quiet(t)
	p := pgtest.NewProxy(t, d)
	c := warm(t, p)
	holder := take(t, client(t, d), "held")
	defer release(t, holder)
	var l *pglock.Lease
	for _, call := range []struct {
		what string
		do   func()
		want cost
	}{
		{"a try", func() { l = take(t, c, "warm") }, cost{1, 1, 0, 1, true}},
		{"a renewal", func() { renew(t, l) }, cost{1, 1, 0, 1, true}},
		{"a release", func() { release(t, l) }, cost{1, 1, 0, 1, true}},
		{"a try of a new name", func() { l = take(t, c, "new") }, cost{1, 1, 0, 1, true}},
		{"its release", func() { release(t, l) }, cost{1, 1, 0, 1, true}},
		{"a try that loses", func() { refused(t, c, "held") }, cost{1, 1, 0, 0, false}},
		{"a try that loses to its own client", func() { again := take(t, c, "warm"); refused(t, c, "warm"); release(t, again) }, cost{3, 3, 0, 2, true}},
		{"a bad name", func() { c.TryAcquire(t.Context(), "") }, cost{}}, //nolint:errcheck // tested elsewhere
	} {
		if got := costOf(t, d, p, call.do); got != call.want {
			t.Errorf("%s cost %+v, want %+v", call.what, got, call.want)
		}
	}
}

func renew(t *testing.T, l *pglock.Lease) {
	t.Helper()
	if err := l.Renew(soon(t)); err != nil {
		t.Fatalf("Renew: %v", err)
	}
}

// The first call of a client opens a connection. It checks in, and each statement is prepared when it is first used: two round
// trips each.
func TestTheFirstUseOfAConnectionCostsFourRoundTrips(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	p := pgtest.NewProxy(t, d)
	c := open(t, p.URL(), pglock.Config{})
	var l *pglock.Lease
	for _, call := range []struct {
		what string
		do   func()
		want int
	}{
		{"the first try: check in and acquire", func() { l = take(t, c, "a") }, 4},
		{"the first release", func() { release(t, l) }, 2},
		{"the second try", func() { l = take(t, c, "a") }, 1},
		{"the first renewal, on a connection of its own", func() { renew(t, l) }, 4},
		{"the second renewal", func() { renew(t, l) }, 1},
	} {
		before := p.Counts()
		call.do()
		if got := p.Counts().Since(before).RoundTrips(); got != call.want {
			t.Errorf("%s: %d round trips, want %d", call.what, got, call.want)
		}
	}
	if n := p.Conns(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}

func TestCallersWhoComeTogetherShareRoundTrips(t *testing.T) {
	t.Parallel()
	const callers, most = 64, 8
	d := pgtest.DB(t)
	p := pgtest.NewProxy(t, d)
	c := warm(t, p)
	p.Delay(pgtest.ToServer, 100*time.Millisecond) // time for all to come while the first is on its way
	var leases []*pglock.Lease
	all := func(do func(i int) acquired) {
		answers := make(chan acquired, callers)
		for i := range callers {
			go func() { answers <- do(i) }()
		}
		for range callers {
			leases = append(leases, granted(t, answers))
		}
	}

	before := p.Counts()
	all(func(i int) acquired {
		l, err := c.TryAcquire(t.Context(), fmt.Sprint("lock ", i))
		return acquired{l, err}
	})
	if got := p.Counts().Since(before).RoundTrips(); got > most {
		t.Errorf("%d tries at a time took %d round trips, want %d at most", callers, got, most)
	}
	before, held := p.Counts(), leases
	all(func(i int) acquired { return acquired{held[i], held[i].Release(t.Context())} })
	if got := p.Counts().Since(before).RoundTrips(); got > most {
		t.Errorf("%d releases at a time took %d round trips, want %d at most", callers, got, most)
	}
}

func TestCloseReleasesEveryLeaseInOneRoundTrip(t *testing.T) {
	t.Parallel()
	const leases = 100
	d := pgtest.DB(t)
	p := pgtest.NewProxy(t, d)
	c := warm(t, p)
	for i := range leases {
		take(t, c, fmt.Sprint("lock ", i), pglock.NoRenewal())
	}
	before := p.Counts()
	if err := c.Close(soon(t)); err != nil {
		t.Errorf("Close: %v", err)
	}
	if got := p.Counts().Since(before).RoundTrips(); got != 1 {
		t.Errorf("Close took %d round trips, want 1", got)
	}
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pglock.leases WHERE expires_at > 'epoch'`); n != 0 {
		t.Errorf("%d of %d leases are not released", n, leases)
	}
}
