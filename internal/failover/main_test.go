package failover

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/history"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// long is the cap of the stories, and the TTL of their leases: nothing ends by itself, on however slow a machine.
const long = 10 * time.Minute

// open makes a client whose renewals and calls outlast the outage of any failover here.
func open(t *testing.T, url, schema, owner string) *pglock.Client {
	t.Helper()
	c, err := pglock.Open(url, pglock.Config{Schema: schema, Owner: owner, TTL: long})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		gone, cancel := context.WithCancel(context.Background())
		cancel() // its server may be gone
		if err := c.Close(gone); err != nil && !errors.Is(err, pglock.ErrNotReleased) {
			t.Errorf("Close of %s: %v", owner, err)
		}
	})
	return c
}

// soon bounds what a server that runs does at once.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// do fails the test for an error of something that the test itself does.
func do(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func wantErr(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

var grants atomic.Int64

// told begins the trust window of a lease that a client was given. No grant is told twice here, so each gets a name: one with a
// token of another is never taken for that one, though a client of the same name has both.
func told(r *history.Recorder, client string, l *pglock.Lease) *history.Holding {
	g := l.Grant()
	client = fmt.Sprintf("%s (grant %d)", client, grants.Add(1))
	return r.Told(history.Grant{Client: client, Lock: g.Lock, Slot: g.Slot, Token: int64(g.Token)})
}

// renew renews a lease over whichever connection works.
func renew(t *testing.T, l *pglock.Lease) error {
	t.Helper()
	ctx := soon(t)
	for {
		err := l.Renew(ctx)
		if err == nil || l.Err() != nil || ctx.Err() != nil {
			return err
		}
	}
}
