package pgtemp_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
)

func TestKillLosesWhatWasNotFlushed(t *testing.T) {
	t.Parallel()
	s := local(t, pgtemp.Options{})
	slow := map[string]string{"wal_writer_delay": "10s"}
	if err := s.Set(slow); err == nil {
		t.Error("a server that runs took a setting")
	}
	if err := errors.Join(s.Halt(t.Context(), pgtemp.Fast), s.Set(slow), s.Resume(t.Context())); err != nil {
		t.Fatal(err)
	}
	if delay := one[string](t, s, `SHOW wal_writer_delay`); delay != "10s" {
		t.Errorf("wal_writer_delay = %s", delay)
	}
	execute(t, s, `SET synchronous_commit = local; CREATE TABLE numbers AS SELECT 1 AS n`)
	writer := writerOf(t, s)
	if err := s.FreezeProcess(writer); err != nil {
		t.Fatal(err)
	}
	execute(t, s, `INSERT INTO numbers VALUES (2)`)
	for range 2 { // a second call does nothing
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.KillProcess(writer); err == nil {
		t.Error("a process of a server that is gone was killed")
	}
	if err := s.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := one[int](t, s, `SELECT count(*) FROM numbers`); n != 1 {
		t.Errorf("%d rows, want the 1 that was flushed", n)
	}
}

func TestKillOfOneProcessRestartsTheOthers(t *testing.T) {
	t.Parallel()
	s := local(t, pgtemp.Options{})
	if err := s.KillProcess(1); err == nil {
		t.Error("a process of another program was killed")
	}
	const start = `SELECT pg_postmaster_start_time()`
	before := one[time.Time](t, s, start)
	writer := writerOf(t, s)
	if err := s.KillProcess(writer); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server to have recovered", func() bool {
		now, err := ask[int](t.Context(), s, `SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'`)
		return err == nil && now != writer
	})
	if after := one[time.Time](t, s, start); !after.Equal(before) {
		t.Errorf("started at %v, before at %v: it is another server", after, before)
	}
}

func TestAStandbyMayHaveAClockOfItsOwn(t *testing.T) {
	t.Parallel()
	if err := pgtemp.CheckClock(); err != nil {
		if required("faketime") {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	s := local(t, pgtemp.Options{})
	standby, err := s.Standby(t.Context(), pgtemp.StandbyOptions{Clock: -time.Hour})
	stopped(t, standby, err)
	behind := time.Until(one[time.Time](t, standby, `SELECT clock_timestamp()`))
	if math.Abs((behind + time.Hour).Minutes()) > 10 {
		t.Errorf("its clock is ahead by %v, want an hour behind", behind)
	}
}

func TestADumpMakesTheDatabaseAgain(t *testing.T) {
	t.Parallel()
	s := local(t, pgtemp.Options{})
	execute(t, s, `CREATE TABLE numbers AS SELECT 4711 AS n`)
	dump, err := s.Dump(t.Context(), "postgres")
	if errors.Is(err, pgtemp.ErrNoDump) {
		if required("pg_dump") {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	execute(t, s, `DROP TABLE numbers`)
	execute(t, s, dump)
	if n := one[int](t, s, `SELECT n FROM public.numbers`); n != 4711 {
		t.Errorf("n = %d, want 4711", n)
	}
}

// writerOf is a process beside the sessions, which a server that has just started may not have yet.
func writerOf(t *testing.T, s *pgtemp.Server) (pid int) {
	t.Helper()
	eventually(t, "the server to have a walwriter", func() (ok bool) {
		var err error
		pid, err = ask[int](t.Context(), s, `SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'`)
		return err == nil
	})
	return pid
}
