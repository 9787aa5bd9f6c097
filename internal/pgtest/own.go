package pgtest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
)

// OwnServer starts a server that belongs to the test, to be halted, restarted or frozen, and returns it with a migrated
// database "app" on it. It is stopped when the test ends. The test is skipped where there are no local binaries ("local"
// in PGLOCK_TEST_REQUIRE).
func OwnServer(t testing.TB, o pgtemp.Options) (*pgtemp.Server, *Database) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	if err := pgtemp.CheckLocal(ctx); err != nil {
		missing(t, "local", err.Error())
	}
	o.Fresh = true
	s, err := pgtemp.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	d := Adopt(t, s, "app")
	if err := newMigrated(s, d.Name); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return s, d
}

// Standby starts a primary of the test's own and a hot standby of it, and returns the migrated database "app" on both. It
// returns when the standby has all that the primary has. Halt and promote their Server.
func Standby(t testing.TB) (primary, standby *Database) {
	t.Helper()
	s, primary := OwnServer(t, pgtemp.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	second, err := s.Standby(ctx, pgtemp.StandbyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	standby = Adopt(t, second, primary.Name)
	standby.WaitReplayed(t, primary)
	return primary, standby
}

// WaitReplayed blocks until a standby has everything that its primary has committed before the call.
func (d *Database) WaitReplayed(t testing.TB, primary *Database) {
	t.Helper()
	var end string
	primary.do(t, func(ctx context.Context, conn *pgx.Conn) error {
		// Where commits are not flushed one by one, they are not sent either. This one is, and all before it.
		_, err := conn.Exec(ctx, `SET synchronous_commit = local; SELECT pg_logical_emit_message(true, 'pgtest', '')`)
		if err != nil {
			return err
		}
		return conn.QueryRow(ctx, `SELECT pg_current_wal_lsn()::text`).Scan(&end)
	})
	d.WaitFor(t, `SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn`, end)
}

func stopAtEnd(t testing.TB, s *pgtemp.Server) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the server's log (%s):\n%s", s.How(), s.Log())
		}
		if err := s.Stop(); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
}
