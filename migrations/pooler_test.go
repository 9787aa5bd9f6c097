package migrations_test

import (
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/migrations"
)

// A transaction pooler gives each transaction another server connection. Nothing may be prepared on one and used on
// another, and a lock that outlives its transaction would stay with whoever comes next.
func TestSixteenReplicasInstallThroughATransactionPooler(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	url := pgtest.PgBouncer(t, db)
	rounds(t, db, url)
	mustUp(t, poolAs(t, url), migrations.Schema(`my "odd" schema's`))
}
