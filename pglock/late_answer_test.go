package pglock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// The answer says granted, and comes when the lease that it grants may be over: nobody is given that lease, so nobody must have
// to wait for what it was to keep.
func TestAGrantWhoseAnswerComesTooLateToTrustIsNoLeaseAndIsGivenBack(t *testing.T) {
	t.Parallel()
	d, p, c := connected(t)
	p.Delay(pgtest.ToClient, 1200*time.Millisecond)

	l, err := c.TryAcquire(soon(t), lockName, pglock.TTL(time.Second), pglock.HoldAtLeast(time.Hour))

	p.Delay(pgtest.ToClient, 0)
	var lost *pglock.LostError
	if l != nil || !errors.Is(err, pglock.ErrLost) || !errors.As(err, &lost) {
		t.Fatalf("TryAcquire = %v, %v, want no lease and a *LostError", l, err)
	}
	token := pgtest.Query[int64](t, d, `SELECT token FROM pglock.leases WHERE name = $1`, lockName)
	if lost.Name != lockName || lost.Cause != pglock.Expired || int64(lost.Token) != token {
		t.Errorf("TryAcquire = %v, want the loss of the grant with token %d", err, token)
	}
	// It was given back, and did not only run out.
	d.WaitFor(t, `SELECT expires_at = 'epoch' AND not_before = 'epoch' FROM pglock.leases WHERE name = $1`, lockName)
	if next := take(t, c, lockName); int64(next.Token()) <= token {
		t.Errorf("token %d after %d", next.Token(), token)
	}
}
