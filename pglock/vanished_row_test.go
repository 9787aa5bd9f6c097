package pglock_test

import (
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/jackc/pgx/v5"
)

// What an operator may do to the table, and why the lease then ends.
var vanishing = map[string]struct {
	sql   string
	cause pglock.LossCause
}{
	"row deleted":     {`DELETE FROM pglock.leases`, pglock.Deleted},
	"table truncated": {`TRUNCATE pglock.leases`, pglock.Deleted},
	"table dropped":   {`DROP TABLE pglock.leases CASCADE`, pglock.Expired}, // nobody can say
	"table renamed":   {`ALTER TABLE pglock.leases RENAME TO attic`, pglock.Expired},
	"schema dropped":  {`DROP SCHEMA pglock CASCADE`, pglock.Expired},
	"row released":    {`UPDATE pglock.leases SET expires_at = 'epoch'`, pglock.Expired},
}

func TestALeaseWhoseRowIsGoneIsLostAndNeverMadeAnew(t *testing.T) {
	t.Parallel()
	for what, v := range vanishing {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			pool := d.Pool(t)
			l := take(t, open(t, d.URL, pglock.Config{TTL: 2 * time.Second, RenewEvery: 200 * time.Millisecond}), "a")
			d.Exec(t, v.sql)

			wantLoss(t, l, v.cause) // by the renewals that the client makes by itself

			err := fence.Tx(soon(t), pool, l.Grant(), "r", func(pgx.Tx) error { return nil })
			if v.cause == pglock.Deleted {
				wantErr(t, "a fenced write", err, pglock.ErrLost)
			} else if err == nil && what != "row released" { // that one is harmless until another is granted the lock
				t.Error("a fenced write passed")
			}
			if pgtest.Query[bool](t, d, `SELECT to_regclass('pglock.leases') IS NOT NULL`) && holds(t, d, "a") {
				t.Errorf("a renewal made the row anew: %s", row(t, d, "a"))
			}
		})
	}
}

func TestALockWhoseRowWasDeletedCanBeTakenByTheSameClient(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{`DELETE FROM pglock.leases`, `TRUNCATE pglock.leases`} {
		t.Run(sql, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			c := client(t, d)
			first := take(t, c, "a")
			release(t, first)
			d.Exec(t, sql)
			if second := take(t, c, "a"); second.Token() <= first.Token() {
				t.Errorf("token %d after %d", second.Token(), first.Token())
			}
		})
	}
}
