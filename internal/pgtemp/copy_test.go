package pgtemp_test

import (
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
)

// stopped has a copy stopped when the test ends.
func stopped(t *testing.T, s *pgtemp.Server, err error) *pgtemp.Server {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Errorf("Stop: %v", err)
		}
	})
	return s
}

func TestACopyIsAsTheServerWas(t *testing.T) {
	t.Parallel()
	s := local(t, pgtemp.Options{Settings: map[string]string{"synchronous_commit": "local"}})
	execute(t, s, `CREATE TABLE numbers AS SELECT 1 AS n`)
	snapshot, err := s.Snapshot()
	stopped(t, snapshot, err)
	backup, err := s.Backup(t.Context())
	stopped(t, backup, err)
	execute(t, s, `INSERT INTO numbers VALUES (2)`)
	for what, copied := range map[string]*pgtemp.Server{"snapshot": snapshot, "backup": backup} {
		if err := dial(t.Context(), copied.URL("postgres")); err == nil {
			t.Errorf("the %s runs before Resume", what)
		}
		if err := copied.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := one[int](t, copied, `SELECT count(*) FROM numbers`); n != 1 {
			t.Errorf("%s: %d rows, want the 1 that was there", what, n)
		}
		execute(t, copied, `INSERT INTO numbers VALUES (3)`)
		if timeline := one[string](t, copied, `SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)`); timeline != "00000001" {
			t.Errorf("%s: timeline %s, want that of the original", what, timeline)
		}
	}
	if n := one[int](t, s, `SELECT count(*) FROM numbers`); n != 2 {
		t.Errorf("the original has %d rows, want its own 2", n)
	}
}

func TestAnOldPrimaryFollowsTheNewOne(t *testing.T) {
	t.Parallel()
	first := local(t, pgtemp.Options{Settings: map[string]string{"synchronous_commit": "local"}})
	second, err := first.Standby(t.Context(), pgtemp.StandbyOptions{Name: "second"})
	stopped(t, second, err)
	if name := one[string](t, first, `SELECT application_name FROM pg_stat_replication`); name != "second" {
		t.Errorf("the standby is called %q", name)
	}
	if err := first.Follow(second, pgtemp.StandbyOptions{}); err == nil {
		t.Error("a server that runs followed another")
	}
	if err := first.Halt(t.Context(), pgtemp.Fast); err != nil { // it waits until the standby has everything
		t.Fatal(err)
	}
	if err := second.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	execute(t, second, `CREATE TABLE numbers AS SELECT 1 AS n`)
	if err := first.Follow(second, pgtemp.StandbyOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := first.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the old primary to replay", func() bool { return one[bool](t, first, `SELECT to_regclass('numbers') IS NOT NULL`) })
	if !one[bool](t, first, `SELECT pg_is_in_recovery()`) {
		t.Error("the old primary is not in recovery")
	}
}
