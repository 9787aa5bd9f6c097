package pgtemp_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
)

func dial(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

func TestRestartAndHaltKeepDataAndAddress(t *testing.T) {
	t.Parallel()
	s := local(t, pgtemp.Options{Durable: true})
	execute(t, s, `CREATE TABLE kept AS SELECT 1 AS n`)
	before := one[time.Time](t, s, `SELECT pg_postmaster_start_time()`)
	runsAgain := func() {
		t.Helper()
		after := one[time.Time](t, s, `SELECT pg_postmaster_start_time()`)
		if !after.After(before) {
			t.Errorf("started at %v, before the restart at %v", after, before)
		}
		before = after
		if n := one[int](t, s, `SELECT n FROM kept`); n != 1 {
			t.Errorf("n = %d, want 1", n)
		}
	}
	if err := s.Restart(t.Context(), pgtemp.Fast); err != nil {
		t.Fatal(err)
	}
	runsAgain()
	for range 2 { // a second call does nothing
		if err := s.Halt(t.Context(), pgtemp.Immediate); err != nil {
			t.Fatal(err)
		}
	}
	if err := dial(t.Context(), s.URL("postgres")); err == nil {
		t.Error("a halted server accepts connections")
	}
	for range 2 {
		if err := s.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	runsAgain()
}

func TestFrozenServerIsSilentThenGoesOnAndCanBeStopped(t *testing.T) {
	t.Parallel()
	s := local(t, pgtemp.Options{})
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := s.Freeze(); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() { answered <- conn.Ping(t.Context()) }()
	select {
	case err := <-answered:
		t.Errorf("a frozen server answered: %v", err)
	case <-time.After(100 * time.Millisecond): // nothing happens: no event to wait for
	}
	if err := s.Thaw(); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Errorf("after Thaw: %v", err)
	}
	if err := s.Freeze(); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}

func TestStandbyFollowsAndIsPromoted(t *testing.T) {
	t.Parallel()
	primary := local(t, pgtemp.Options{})
	execute(t, primary, `CREATE TABLE numbers AS SELECT 1 AS n`)
	standby, err := primary.Standby(t.Context(), pgtemp.StandbyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer standby.Stop()
	execute(t, primary, `INSERT INTO numbers VALUES (2)`)
	eventually(t, "the standby to replay", func() bool { return one[int](t, standby, `SELECT count(*) FROM numbers`) == 2 })
	if !one[bool](t, standby, `SELECT pg_is_in_recovery()`) {
		t.Error("the standby is not in recovery")
	}
	_, err = ask[int](t.Context(), standby, `INSERT INTO numbers VALUES (3) RETURNING n`)
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Code != "25006" {
		t.Errorf("a write on the standby: %v, want 25006", err)
	}

	if err := primary.Halt(t.Context(), pgtemp.Immediate); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	execute(t, standby, `INSERT INTO numbers VALUES (3)`)
	if timeline := one[int](t, standby, `SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int`); timeline != 2 {
		t.Errorf("timeline %d after the promotion, want 2", timeline)
	}
}
