package migrations_test

import (
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// While a bump is not committed, and while the sequence is being moved, grants wait or are held back. Renewals go on.
func TestNeitherABumpNorAMoverHoldsUpARenewal(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	slow, other := newCaller(t, db), newCaller(t, db)
	g := other.take("a")
	for what, statement := range map[string]string{
		"bump":  `SELECT pglock.check_in(0)`,
		"mover": `SELECT pglock.raise_token_floor(0)`,
	} {
		slow.exec(`BEGIN`)
		if what == "bump" {
			slow.exec(otherServer)
		}
		slow.exec(statement)
		if !one[bool](other, `SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND locktype = 'advisory')`, slow.conn.PgConn().PID()) {
			t.Errorf("%s: it does not hold the mover's lock: nothing is tested", what)
		}
		other.exec(`SET statement_timeout = '10s'`)
		want(t, "renewal beside a "+what, other.renew(g), "renewed")
		slow.exec(`ROLLBACK`)
	}
	want(t, "release", other.release(g), "released")
}
