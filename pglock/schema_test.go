package pglock_test

import (
	"testing"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/migrations"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/jackc/pgx/v5"
)

// A fence in the wrong schema would be another fence, and nobody would notice.
func TestAWriteUsesTheFencesOfItsLocksSchema(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t) // with the default schema beside it
	pool := d.Pool(t)
	if err := migrations.Up(t.Context(), pool, migrations.Schema("locks")); err != nil {
		t.Fatal(err)
	}
	c := open(t, d.URL, pglock.Config{Schema: "locks"})
	l := take(t, c, "a")

	err := fence.Tx(t.Context(), pool, l.Grant(), "ledger", func(pgx.Tx) error { return nil })

	wantErr(t, "Tx", err, nil)
	if there := pgtest.Query[bool](t, d, `SELECT EXISTS (SELECT FROM locks.fences WHERE resource <> '') AND NOT EXISTS (SELECT FROM pglock.fences WHERE resource <> '')`); !there {
		t.Error("the fence is not in the schema of the lock")
	}
}
