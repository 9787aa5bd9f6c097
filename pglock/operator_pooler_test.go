package pglock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/migrations"
	"github.com/fencedlock/fencedlock/pglock"
)

func TestAHoldIsKeptAndEndedBehindATransactionPooler(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	_, c := pooled(t, pooler(t, d), pglock.Config{})
	l := take(t, c, "held")
	d.Exec(t, otherServer)
	heldBack(t, c, "a", 30*time.Second)
	stillHeld(t, d, l)
	wantErr(t, "EndHold", c.EndHold(soon(t)), nil)
	wantErr(t, "RaiseCap", c.RaiseCap(soon(t), time.Minute), nil)
	take(t, c, "a", pglock.TTL(time.Minute))
}

// A managed server may not say which server it is. Then every difference is taken for the worst.
func TestAHoldNeedsNothingOfTheServerButItsStart(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	d.Exec(t, `REVOKE EXECUTE ON FUNCTION pg_control_system(), pg_control_checkpoint(), pg_walfile_name(pg_lsn), pg_current_wal_lsn() FROM PUBLIC`)
	role := d.Role(t)
	d.Exec(t, `CREATE SCHEMA pglock AUTHORIZATION `+role)
	pool, err := pgxpool.New(t.Context(), d.URLAs(role))
	wantErr(t, "pool", err, nil)
	t.Cleanup(pool.Close)
	wantErr(t, "Up", migrations.Up(soon(t), pool, migrations.SingleNode()), nil)
	c := open(t, d.URLAs(role), pglock.Config{})
	l := take(t, c, "held")
	d.Exec(t, otherServer)
	_, err = c.TryAcquire(soon(t), "a")
	var back *pglock.HeldBackError
	if !errors.As(err, &back) || back.Reason != "the server was restarted, or another has taken over" {
		t.Errorf("TryAcquire = %v, want a *HeldBackError that does not know what happened", err)
	}
	if !pgtest.Query[bool](t, d, `SELECT no_grants_before > pg_postmaster_start_time() + interval '30 s' FROM pglock.guard`) {
		t.Error("the hold counts from the start of the server, as after a plain restart")
	}
	stillHeld(t, d, l)
	wantErr(t, "EndHold", c.EndHold(soon(t)), nil)
	release(t, take(t, c, "a"))

	d.Exec(t, `DELETE FROM pglock.guard`) // by hand
	_, err = client(t, d).TryAcquire(soon(t), "a")
	wantErr(t, "TryAcquire without a guard", err, pglock.ErrNotMigrated)
}
