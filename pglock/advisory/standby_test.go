package advisory_test

import (
	"context"
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock/advisory"
)

// Case E3: a standby would grant what is held on the primary. It is not asked, and the connection is let go: the next one may
// lead to the primary.
func TestAStandbyIsRefused(t *testing.T) {
	t.Parallel()
	primary, standby := pgtest.Standby(t)
	key := advisory.Name("a")
	holder := take(t, client(t, primary), key)
	c := client(t, standby)
	_, err := c.TryAcquire(soon(t), key)
	wantErr(t, "TryAcquire on a standby", err, advisory.ErrStandby)
	_, err = c.Acquire(shortly(t), key)
	wantErr(t, "Acquire on a standby", err, context.DeadlineExceeded)
	standby.WaitFor(t, `SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'pglock/advisory')`)
	for _, kind := range txKinds {
		tx := kind.begin(t, standby.URL)
		wantErr(t, "TryAcquire in a transaction on a standby: "+kind.name, tx.TryAcquire(soon(t), key), advisory.ErrStandby)
		wantErr(t, "Acquire in a transaction on a standby: "+kind.name, tx.Acquire(soon(t), key), advisory.ErrStandby)
		if _, err := tx.show(`SELECT 'goes on'`); err != nil {
			t.Errorf("the transaction afterwards: %v", err)
		}
		tx.rollback()
	}
	if n := locks(t, standby); n != 0 {
		t.Errorf("%d locks on the standby", n)
	}
	// Whoever waits finds the primary when it is there.
	waiting := acquiring(soon(t), c, key)
	release(t, holder)
	if err := standby.Server.Promote(soon(t)); err != nil {
		t.Fatal(err)
	}
	release(t, granted(t, waiting))
}
