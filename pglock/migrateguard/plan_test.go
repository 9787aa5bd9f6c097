package migrateguard_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock/migrateguard"
)

func TestPlanSaysWhatUpWouldRun(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	d.Exec(t, runs)
	g := open(t, d.URL, three(t), migrateguard.Config{})
	p, err := g.Plan(soon(t))
	must(t, "Plan", err)
	if got := fmt.Sprint(p.Version, p.Dirty, p.Migrations); got != "-1 false [1_books 2_index 3_last]" {
		t.Errorf("Plan = %s", got)
	}
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pg_class WHERE relname IN ('schema_migrations', 'leases')`); n != 0 {
		t.Error("Plan has made tables")
	}
	must(t, "Steps", g.Steps(soon(t), 2))
	p, err = g.Plan(soon(t))
	must(t, "Plan", err)
	if got := fmt.Sprint(p.Version, p.Dirty, p.Migrations); got != "2 false [3_last]" {
		t.Errorf("Plan = %s", got)
	}
}

func TestProgressIsTold(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, runs)
	told, notify := events()
	var log strings.Builder
	g := open(t, d.URL, three(t), migrateguard.Config{Notify: notify, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	must(t, "Up", g.Up(soon(t)))
	must(t, "Steps", g.Steps(soon(t), -1))
	close(told)
	var got []string
	for e := range told {
		got = append(got, fmt.Sprintf("%s %d/%d %v %d", e.Kind, e.K, e.N, e.Migration, e.Migration.Target))
		if e.Kind == migrateguard.Finished && e.Elapsed <= 0 {
			t.Errorf("%v took no time", e)
		}
		if !strings.Contains(log.String(), strings.SplitN(e.String(), ":", 2)[0]) {
			t.Errorf("the log does not have %v", e)
		}
	}
	want := "started 1/3 1_books 1\nfinished 1/3 1_books 1\nstarted 2/3 2_index 2\nfinished 2/3 2_index 2\nstarted 3/3 3_last 3\nfinished 3/3 3_last 3\n" +
		"started 1/1 3_last (down) 2\nfinished 1/1 3_last (down) 2"
	if strings.Join(got, "\n") != want {
		t.Errorf("told\n%s, want\n%s", strings.Join(got, "\n"), want)
	}
}

// A migration that has a file in one direction only moves the version in the other, as golang-migrate has it.
func TestAMissingHalfMovesTheVersionOnly(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	g := open(t, d.URL, files(t, "1_a.up.sql", "CREATE TABLE a ()", "2_b.down.sql", "SELECT 1", "3_empty.up.sql", "  "), migrateguard.Config{})
	must(t, "Up", g.Up(soon(t)))
	wantVersion(t, d, "3")
	must(t, "Down", g.Down(soon(t)))
	wantVersion(t, d, "nothing")
}

// Whatever the names: one lock for one table, and the same each time.
func TestLockNames(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
	word := func() string {
		b := make([]rune, 1+rnd.IntN(3))
		for i := range b {
			b[i] = []rune(`a."' /é`)[rnd.IntN(7)]
		}
		return string(b)
	}
	names, keys := map[string][2]string{}, map[string][2]string{}
	for range 20000 {
		table := [2]string{word(), word()}
		name, key := migrateguard.LockOf(table[0], table[1])
		if again, k := migrateguard.LockOf(table[0], table[1]); again != name || k != key {
			t.Fatalf("%q has two locks", table)
		}
		if other, ok := names[name]; ok && other != table {
			t.Fatalf("%q and %q have one lease", table, other)
		}
		if other, ok := keys[key]; ok && other != table {
			t.Fatalf("%q and %q have one key", table, other)
		}
		names[name], keys[key] = table, table
	}
}
