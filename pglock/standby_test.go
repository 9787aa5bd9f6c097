package pglock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A standby refuses with a typed error, and the client lets go of it: a name that moves on to the primary is followed.
func TestAStandbyIsRefusedAndThePrimaryFoundWhenItIsThere(t *testing.T) {
	t.Parallel()
	primary, standby := pgtest.Standby(t)
	onStandby := func() int {
		return pgtest.Query[int](t, standby, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pglock'`)
	}
	// As a service name that leads to one of the two.
	to := atomic.Pointer[pgx.ConnConfig]{}
	point := func(d *pgtest.Database) {
		cc, err := pgx.ParseConfig(d.URL)
		if err != nil {
			t.Fatal(err)
		}
		to.Store(cc)
	}
	moving := func(onConnect func()) *pglock.Client {
		pc, err := pgxpool.ParseConfig(standby.URL)
		if err != nil {
			t.Fatal(err)
		}
		pc.BeforeConnect = func(_ context.Context, cc *pgx.ConnConfig) error {
			onConnect()
			cc.Host, cc.Port = to.Load().Host, to.Load().Port
			return nil
		}
		return ofPool(t, pc, pglock.Config{})
	}

	point(standby)
	trying := moving(func() {})
	for range 2 {
		_, err := trying.TryAcquire(soon(t), "a")
		wantErr(t, "TryAcquire on a standby", err, pglock.ErrReadOnly)
		standby.WaitFor(t, `SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'pglock')`)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	connects := 0
	_, err := moving(func() { // each try finds a new connection
		if connects++; connects == 3 {
			cancel(errShutdown)
		}
	}).Acquire(ctx, "a")
	wantErr(t, "Acquire on a standby", err, pglock.ErrReadOnly)
	wantErr(t, "Acquire on a standby", err, errShutdown)

	tries := make(chan struct{}, 100)
	waiting := acquiring(soon(t), moving(func() { tries <- struct{}{} }), "a")
	for range 3 {
		happens(t, "Acquire tries again", tries)
	}
	point(primary)

	l := granted(t, waiting)
	refused(t, trying, "a")
	if n := onStandby(); n != 0 {
		t.Errorf("%d connections to the standby", n)
	}

	// The primary becomes a server that only reads, under a holder: its renewals find the other one.
	wantErr(t, "Renew", l.Renew(soon(t)), nil)
	stillHeld(t, primary, l)
	standby.WaitReplayed(t, primary)
	if err := standby.Server.Promote(slow(t)); err != nil {
		t.Fatal(err)
	}
	point(standby)
	primary.KillBackends(t, `application_name = 'pglock'`)
	renewedAgain(t, standby, "a")
	stillHeld(t, standby, l)
	heldBack(t, trying, "b", 30*time.Second)
}
