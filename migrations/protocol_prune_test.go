package migrations_test

import (
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

func (c *caller) prune(idle string, most int) int {
	c.t.Helper()
	return one[int](c, `SELECT pglock.prune($1::text::interval, $2)`, idle, most)
}

func (c *caller) names() string {
	c.t.Helper()
	return one[string](c, `SELECT coalesce(string_agg(name, ' ' ORDER BY name), '') FROM pglock.leases`)
}

// Pruning forgets names, and never lowers a token: not even when the sequence lags behind what goes.
func TestPruneKeepsTokensRising(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	g := c.take("a")
	c.release(g)
	db.Age(t, "a", 24*time.Hour)
	db.Exec(t, `SELECT setval('pglock.fencing_token', 5)`)
	want(t, "pruned", c.prune("1 hour", 100), 1)
	want(t, "names", c.names(), "")
	if next := c.take("a"); next.token <= g.token {
		t.Errorf("token %d after %d", next.token, g.token)
	}
}

// A late duplicate of a grant must still meet its id: nothing younger than the cap is forgotten, whatever is asked.
func TestPruneLeavesWhatIsYoungerThanTheCap(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	g := c.take("a")
	c.release(g)
	for _, idle := range []string{"0", "-1 year"} {
		want(t, "pruned after "+idle, c.prune(idle, 100), 0)
	}
	db.Age(t, "a", 29*time.Second) // the cap is 30 s
	want(t, "pruned just before", c.prune("0", 100), 0)
	want(t, "late duplicate", c.again(g).status, "spent")
	db.Age(t, "a", 2*time.Second)
	want(t, "pruned an hour too early", c.prune("1 hour", 100), 0)
	want(t, "pruned just after", c.prune("0", 100), 1)
}

func TestPruneLeavesWhatIsInUse(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	for _, name := range []string{"idle", "idle too", "live", "held back", "locked", "shared"} {
		c.take(name)
		db.Age(t, name, 24*time.Hour)
	}
	db.Exec(t, `INSERT INTO pglock.leases (name) VALUES ('vacant')`)
	db.Exec(t, `UPDATE pglock.leases SET expires_at = clock_timestamp() + interval '1 min' WHERE name = 'live';
		UPDATE pglock.leases SET not_before = clock_timestamp() + interval '1 min' WHERE name = 'held back'`)
	unlock, end := lock(t, db, "locked", "UPDATE"), lock(t, db, "shared", "KEY SHARE")
	want(t, "pruned, one at most", c.prune("1 hour", 1), 1)
	want(t, "pruned, the rest", c.prune("1 hour", 100), 2)
	want(t, "names", c.names(), "held back live locked shared")
	unlock()
	end()
	want(t, "pruned after the locks", c.prune("1 hour", 100), 2)
}
