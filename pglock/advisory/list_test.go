package advisory_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock/advisory"
)

// Who holds, who waits in Acquire, who waits in a function of PostgreSQL's, and for whom; in both spaces of keys.
func TestListTellsWhoHoldsAndWhoWaits(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	pool := d.Pool(t)
	if all, err := advisory.List(soon(t), pool); len(all) != 0 || err != nil {
		t.Errorf("List of nothing = %v, %v", all, err)
	}
	pc := poolConfig(t, d.URL)
	pc.ConnConfig.RuntimeParams["application_name"] = "billing"
	c, _ := ofPool(t, pc)
	a, pair := advisory.Name("jobs", "a"), advisory.Int32s(-1, 7)
	held, paired := take(t, c, a), take(t, c, pair, advisory.Shared())
	waiting := acquiring(soon(t), client(t, d), a, advisory.Shared())
	pairWaiting := acquiring(soon(t), client(t, d), pair)
	blocked := d.Conn(t)
	n, _ := a.Int64()
	answer := async(func() error {
		_, err := blocked.Exec(soon(t), fmt.Sprintf(`SELECT pg_advisory_lock(%d)`, n))
		return err
	})
	d.WaitFor(t, pgtest.Waiting)
	d.WaitFor(t, marked+` AND 2 = (SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
		WHERE l.locktype = 'advisory' AND d.datname = current_database() AND l.classid = 3039031241)`)

	all, err := advisory.List(soon(t), pool)
	wantErr(t, "List", err, nil)
	var got []string
	for _, e := range all {
		verb := "holds"
		if e.Waits {
			verb = "waits"
		}
		got = append(got, fmt.Sprintf("%s %v %s %v %v", e.Application, e.PID == held.PID() || e.PID == paired.PID(), verb, e.Key, e.Shared))
		if e.PID == 0 || e.Client != "127.0.0.1" || e.Age <= 0 {
			t.Errorf("List does not know who %+v is", e)
		}
		if held := !e.Waits; !strings.HasPrefix(e.String(), "lock "+e.Key.String()) || strings.Contains(e.String(), "is held by pid") != held ||
			strings.Contains(e.String(), "behind pid") == held {
			t.Errorf("%+v says %q", e, e)
		}
		switch want := map[bool]int32{true: held.PID(), false: paired.PID()}[e.Key.Same(a)]; {
		case e.Waits && !slices.Contains(e.BlockedBy, want):
			t.Errorf("%v waits for %v, want %d", e, e.BlockedBy, want)
		case !e.Waits && len(e.BlockedBy) > 0:
			t.Errorf("%v holds the lock and waits for %v", e, e.BlockedBy)
		}
	}
	want := []string{
		fmt.Sprintf("billing true holds %v false", a), fmt.Sprintf(" false waits %v false", a), fmt.Sprintf("pglock/advisory false waits %v true", a),
		fmt.Sprintf("billing true holds %v true", pair), fmt.Sprintf("pglock/advisory false waits %v false", pair),
	}
	if !slices.Equal(got, want) {
		t.Errorf("List =\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	some, err := advisory.List(soon(t), pool, pair, advisory.Name("unused"))
	wantErr(t, "List of two keys", err, nil)
	if len(some) != 2 || !some[0].Key.Same(pair) {
		t.Errorf("List of two keys = %v", some)
	}

	// Who was granted the lock does not wait any more.
	release(t, paired)
	now := granted(t, pairWaiting)
	some, err = advisory.List(soon(t), pool, pair)
	wantErr(t, "List", err, nil)
	if len(some) != 1 || some[0].Waits || some[0].PID != now.PID() {
		t.Errorf("List when nobody waits = %v", some)
	}
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $1`, now.PID()); n != 1 {
		t.Errorf("the session that has waited holds %d locks", n)
	}
	release(t, now)
	release(t, held)
	wantErr(t, "the blocked statement", happens(t, "it is granted the lock", answer), nil)
	wantErr(t, "its end", blocked.Close(soon(t)), nil)
	release(t, granted(t, waiting))
}

// An ordinary role sees the sessions of others, without their addresses.
func TestListForAnOrdinaryRole(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	l := take(t, client(t, d), advisory.Name("a"))
	other := open(t, d.URLAs(d.Role(t)), advisory.Config{})
	held := refused(t, other, advisory.Name("a"))
	if len(held.Holders) != 1 || held.Holders[0].PID != l.PID() || held.Holders[0].Client != "" || held.Holders[0].Age != 0 {
		t.Errorf("the holder is %+v", held.Holders)
	}
	t.Log(held)
}
