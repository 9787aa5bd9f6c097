package migrations_test

import (
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/migrations"
)

func TestTokensRiseOverDownAndUp(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	pool := db.Pool(t)
	ctx := bounded(t)
	last := int64(0)
	for range 3 {
		mustUp(t, pool)
		token, err := acquire(ctx, pool, "pglock", "a")
		if err != nil {
			t.Fatal(err)
		}
		if token <= last {
			t.Fatalf("token %d after %d", token, last)
		}
		last = token
		db.Exec(t, "UPDATE pglock.leases SET expires_at = 'epoch'")
		for range 2 { // what is not there is taken away already
			if err := migrations.Down(ctx, pool); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestDownRefusesWhileALockIsHeld(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	pool := db.Pool(t)
	mustUp(t, pool)
	before := objects(t, db)
	if _, err := acquire(t.Context(), pool, "pglock", "nightly report"); err != nil {
		t.Fatal(err)
	}
	wantErr(t, migrations.Down(bounded(t), pool), migrations.ErrInUse, "nightly report", "Stop their holders")
	if n := objects(t, db); n != before {
		t.Errorf("%d objects, had %d", n, before)
	}
	mustUp(t, pool)
}

// What a table's protection hangs on is not pulled away under it.
func TestDownRefusesWhatOthersDependOn(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	pool := db.Pool(t)
	mustUp(t, pool)
	db.Exec(t, "CREATE VIEW public.who AS SELECT * FROM pglock.inspect")
	wantErr(t, migrations.Down(bounded(t), pool), nil, "who")
	db.Exec(t, "DROP VIEW public.who")
	if err := migrations.Down(bounded(t), pool); err != nil {
		t.Fatal(err)
	}
}

// Down waits for a transaction that uses a table, without standing in the way of the calls that come after it.
func TestDownWaitsForATransaction(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	pool := db.Pool(t)
	mustUp(t, pool)
	tx, err := db.Conn(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT FROM pglock.leases"); err != nil {
		t.Fatal(err)
	}
	down := make(chan error)
	ctx := bounded(t)
	go func() { down <- migrations.Down(ctx, pool) }()
	db.WaitFor(t, pgtest.Waiting)
	// It gives up and begins again after two seconds, so this gets through while the transaction is open.
	if _, err := acquire(ctx, pool, "pglock", "a"); err != nil {
		t.Error(err)
	}
	db.Exec(t, "UPDATE pglock.leases SET expires_at = 'epoch'")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-down; err != nil {
		t.Error(err)
	}
}

func TestDownLeavesASchemaThatIsNotOurs(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	pool := db.Pool(t)
	db.Exec(t, "CREATE SCHEMA theirs")
	for _, c := range []struct {
		schema, also string
		stays        bool
	}{
		{"theirs", "", true},
		{"public", "", true},
		{"ours", "", false},
		{"ours", "CREATE TABLE ours.guest ()", true},
	} {
		mustUp(t, pool, migrations.Schema(c.schema))
		db.Exec(t, c.also)
		if err := migrations.Down(bounded(t), pool, migrations.Schema(c.schema)); err != nil {
			t.Fatal(err)
		}
		if there := pgtest.Query[bool](t, db, "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", c.schema); there != c.stays {
			t.Errorf("schema %s %s: there: %t, want %t", c.schema, c.also, there, c.stays)
		}
	}
}
