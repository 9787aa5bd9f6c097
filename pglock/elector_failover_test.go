package pglock_test

import (
	"net/url"
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// The primary dies and its standby takes over. Where the leader's lease has come along, it may go on; else another is elected when
// it and the hold of new grants have run out. Either way the new primary knows it, and there is one.
func TestAfterAFailoverOfTheDatabaseOneLeads(t *testing.T) {
	t.Parallel()
	primary, standby := pgtest.Standby(t)
	primary.Exec(t, `UPDATE pglock.guard SET cap_us = $1`, electionCap.Microseconds())
	both, err := url.Parse(with(t, primary.URL, "target_session_attrs", "read-write"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := url.Parse(standby.URL)
	if err != nil {
		t.Fatal(err)
	}
	both.Host += "," + other.Host
	var nodes []*node
	for _, owner := range []string{"a", "b", "c"} {
		nodes = append(nodes, candidate(t, both.String(), owner, func(n *node) { n.cfg.TTL = electionTTL }).run(t))
	}
	leaders := func() (n int) {
		for _, x := range nodes {
			if x.IsLeader() {
				n++
			}
		}
		return n
	}
	eventually(t, "one leads", func() bool { return leaders() == 1 })
	standby.WaitReplayed(t, primary)

	if err := primary.Server.Halt(slow(t), pgtemp.Immediate); err != nil {
		t.Fatal(err)
	}
	if err := standby.Server.Promote(slow(t)); err != nil {
		t.Fatal(err)
	}

	renewedAgain(t, standby, "leader") // or granted anew
	eventually(t, "one leads", func() bool { return leaders() == 1 })
}
