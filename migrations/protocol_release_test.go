package migrations_test

import (
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

func TestReleaseFreesAtOnceAndOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, other := newCaller(t, db), newCaller(t, db)
	g := c.take("a")
	want(t, "release", c.release(g), "released")
	want(t, "release twice", c.release(g), "gone")
	want(t, "renewal after it", c.renew(g), "expired")
	if next := other.take("a"); next.token <= g.token {
		t.Errorf("token %d after %d", next.token, g.token)
	}
}

// The release of a former holder never ends the present grant: not that of another, nor a later one of its own.
func TestLateReleaseTouchesNobody(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, other := newCaller(t, db), newCaller(t, db)
	for _, next := range []*caller{other, c} {
		g := c.takeWith(ask{name: "a", label: "me"})
		db.Age(t, "a", time.Minute)
		now := next.takeWith(ask{name: "a", label: "me"})
		before := c.row("a")
		want(t, "late release", c.release(g), "gone")
		want(t, "the present row", c.row("a"), before)
		want(t, "the present renewal", next.renew(now), "renewed")
		want(t, "the present release", next.release(now), "released")
	}
}

// The takeover may come while the release is on its way to the row.
func TestReleaseHeldUpUntilATakeoverTouchesNobody(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, other := newCaller(t, db), newCaller(t, db)
	g := c.take("a")
	hookInto(t, db, beforeReleaseLock)
	resume := stalled(t, db, c, func() string { return c.release(g) })
	db.Age(t, "a", time.Minute)
	other.take("a")
	before := other.row("a")
	want(t, "release", resume(), "gone")
	want(t, "the present row", other.row("a"), before)
}

// A release matches what a renewal does not change: it works right behind one, seen or not.
func TestReleaseHeldUpUntilARenewalReleases(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c, other := newCaller(t, db), newCaller(t, db)
	g := c.take("a")
	hookInto(t, db, beforeReleaseLock)
	resume := stalled(t, db, c, func() string { return c.release(g) })
	want(t, "renewal", other.renew(g), "renewed")
	want(t, "release", resume(), "released")
	other.take("a")
}

// An expired lease that nobody took may still be released: that costs nothing and is no error.
func TestReleaseOfALapsedLease(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	c := newCaller(t, db)
	g := c.take("a")
	db.Age(t, "a", time.Minute)
	want(t, "release", c.release(g), "released")
	want(t, "release twice", c.release(g), "gone")
	want(t, "a name that nobody knows", c.release(grant{name: "b", id: g.id}), "gone")
}
