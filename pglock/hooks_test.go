package pglock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// What a hook of the caller's pool answers is the hook's: it is neither taken for an error of ours nor tried for ever.
func TestAHooksErrorIsToldAsItIs(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	for _, code := range []string{"42P05", "25000", "42P01", "22023", "54000"} {
		pc, err := pgxpool.ParseConfig(d.URL)
		if err != nil {
			t.Fatal(err)
		}
		var connects atomic.Int32
		pc.AfterConnect = func(context.Context, *pgx.Conn) error {
			connects.Add(1)
			return &pgconn.PgError{Code: code, Message: "from the hook"}
		}
		c := ofPool(t, pc, pglock.Config{})

		_, err = c.TryAcquire(soon(t), "a")
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != code || errors.Is(err, pglock.ErrNotMigrated) || errors.Is(err, pglock.ErrInvalidOption) {
			t.Errorf("a hook with %s: %v", code, err)
		}
		if n := connects.Load(); n != 1 {
			t.Errorf("a hook with %s: %d connections for one try", code, n)
		}
	}
}

// A hook that leaves a transaction open is refused: in there no grant would be committed, and no look be a fresh one.
func TestAHookThatLeavesATransactionOpenIsToldSo(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	pc, err := pgxpool.ParseConfig(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	pc.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error { _, err := conn.Exec(ctx, `BEGIN`); return err }
	c := ofPool(t, pc, pglock.Config{})
	_, tried := c.TryAcquire(soon(t), "a")
	_, looked := c.Inspect(soon(t), "a")
	for what, err := range map[string]error{"TryAcquire": tried, "Inspect": looked} {
		if err == nil || !strings.Contains(err.Error(), "AfterConnect of the pool: it leaves a transaction open") {
			t.Errorf("%s = %v, want what the hook has done", what, err)
		}
	}
	take(t, client(t, d), "a")
}

// One refused login, as while a password is being changed, is not the end of a release.
func TestAReleaseIsTriedAgainAfterARefusedLogin(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	pc, err := pgxpool.ParseConfig(with(t, d.URL, "application_name", "releasing"))
	if err != nil {
		t.Fatal(err)
	}
	var refusals atomic.Int32
	pc.AfterConnect = func(context.Context, *pgx.Conn) error {
		if refusals.Add(-1) >= 0 {
			return &pgconn.PgError{Severity: "FATAL", Code: "28P01", Message: "password authentication failed"}
		}
		return nil
	}
	c := ofPool(t, pc, pglock.Config{})
	l := take(t, c, "a", pglock.NoRenewal(), pglock.TTL(30*time.Second)) // the line of the releases is the one to connect again
	refusals.Store(1)
	if n := d.KillBackends(t, `application_name = 'releasing'`); n == 0 {
		t.Fatal("there was no connection to break")
	}

	if err := l.Release(soon(t)); err != nil {
		wantErr(t, "Release", err, pglock.ErrNotReleased)
	}
	d.WaitFor(t, isFree, "a")
	if refusals.Load() >= 0 {
		t.Error("no login was refused: nothing was tested")
	}
}

// A commit that comes with a warning of a trigger or an extension is as good as any. (The one warning that means something is
// tried in TestACancelledWaitForAStandbyIsNoGrant.)
func TestAWarningOfSomebodyElseIsNoDoubt(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, `
		CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'beware'; RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER warn AFTER INSERT OR UPDATE ON pglock.leases DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION warn()`)
	c := client(t, d)
	for range 2 { // a row that is new, and one that was there
		l := take(t, c, "a")
		wantErr(t, "Renew", l.Renew(soon(t)), nil)
		release(t, l)
	}
}
