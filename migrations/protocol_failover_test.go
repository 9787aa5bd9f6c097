package migrations_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// A restart, a crash or not, holds new grants back for the cap, counted from now: another server may have granted meanwhile.
// Declared as a single node, it counts from the start. What is held goes on.
func TestRestartHoldsGrantsBack(t *testing.T) {
	t.Parallel()
	server, db := pgtest.OwnServer(t, pgtemp.Options{})
	c := newCaller(t, db)
	c.exec(`UPDATE pglock.guard SET cap_us = 600000000`)
	g := c.takeWith(ask{name: "a", ttl: 10 * time.Minute})
	for _, c := range []struct {
		name string
		mode pgtemp.Mode
		set  string
		from string
	}{
		{"crash", pgtemp.Immediate, `UPDATE pglock.guard SET single_node = false`, "now"},
		{"restart of a single node", pgtemp.Fast, `UPDATE pglock.guard SET single_node = true`, "start stop"}, // whole seconds are noted
		{"restart", pgtemp.Fast, `UPDATE pglock.guard SET single_node = false`, "now"},
		{"crash of a single node", pgtemp.Immediate, `UPDATE pglock.guard SET single_node = true`, "start"},
	}[:pgtest.Rounds(2, 4)] {
		db.Exec(t, `SET synchronous_commit = on; `+c.set)
		if err := server.Restart(t.Context(), c.mode); err != nil {
			t.Fatal(err)
		}
		again := newCaller(t, db)
		clock := again.clockToken()
		if from := holdOf(again); !strings.Contains(c.from, from) {
			t.Errorf("%s: the hold counts from %s, want %s", c.name, from, c.from)
		}
		want(t, c.name+": renewal", again.renew(g), "renewed")
		again.endHold()
		want(t, c.name+": the held name", again.try("a"), "held")
		if next := again.takeWith(ask{name: c.name}); next.token <= clock {
			t.Errorf("%s: token %d, want above the clock of %d", c.name, next.token, clock)
		}
	}
}

// The row of a name may be older than what its holders know, when the standby that is promoted lacks the end of what the
// primary did. What protects the holders: nothing new is granted, and only the very grant is renewed.
func TestPromotedStandbyHoldsGrantsBack(t *testing.T) {
	t.Parallel()
	primary, standby := pgtest.Standby(t)
	c := newCaller(t, primary)
	c.exec(`UPDATE pglock.guard SET cap_us = 600000000`)
	take := func(name string) grant {
		return c.takeWith(ask{name: name, ttl: 10 * time.Minute, label: "w"})
	}
	alive, released, back, deleted := take("alive"), take("released"), take("back"), take("deleted")
	standby.WaitReplayed(t, primary)
	reader := newCaller(t, standby)
	refusesAll(t, reader, alive)

	// The standby is away while the primary goes on, and does not come back to it.
	if err := standby.Server.Halt(t.Context(), pgtemp.Fast); err != nil {
		t.Fatal(err)
	}
	want(t, "release", c.release(released), "released")
	lost := take("released")
	want(t, "release", c.release(back), "released")
	lostBack := take("back")
	want(t, "renewal", c.renew(alive), "renewed")
	c.exec(`SELECT nextval('pglock.fencing_token') FROM generate_series(1, 100)`) // a standby is a few ahead without a jump
	lostNew := take("new")
	c.exec(`DELETE FROM pglock.leases WHERE name = 'deleted'`)
	if err := primary.Server.Halt(t.Context(), pgtemp.Immediate); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := standby.Server.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	if err := standby.Server.Promote(ctx); err != nil {
		t.Fatal(err)
	}
	c = newCaller(t, standby)
	want(t, "hold", holdOf(c), "now")
	want(t, "timeline", one[string](c, `SELECT timeline FROM pglock.guard`), "00000002")

	for what, check := range map[string]struct {
		g       grant
		renewal string
	}{
		"what was alive all the time":           {alive, "renewed"},
		"what was lost, over an older grant":    {lost, "taken"},
		"what was lost, over one's own grant":   {lostBack, "taken"},
		"what was lost with its name":           {lostNew, "gone"},
		"what was deleted by hand, and is back": {deleted, "renewed"},
	} {
		want(t, "renewal of "+what, c.renew(check.g), check.renewal)
		want(t, "retry of "+what, c.again(check.g).status, "held_back")
	}
	want(t, "release of what was lost", c.release(lost), "gone")
	want(t, "release once more of what is back", c.release(released), "released")
	want(t, "its name", c.try("released"), "held_back")

	c.endHold()
	next := c.takeWith(ask{name: "new", ttl: time.Minute})
	for _, g := range []grant{lost, lostBack, lostNew} {
		if next.token <= g.token {
			t.Errorf("token %d after %d, which was lost", next.token, g.token)
		}
	}
	want(t, "renewal beside the next grant", c.renew(lostNew), "taken")
}
