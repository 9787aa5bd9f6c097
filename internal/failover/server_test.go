package failover

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/migrations"
)

// The schemas of the two installations.
const (
	guarded   = "pglock"
	unguarded = "unguarded"
)

// noGuard switches the guard of the second one off, as if it had never been made.
const noGuard = `CREATE OR REPLACE VIEW unguarded.guard_now AS
	SELECT g.*, d.oid AS database_now, 9223372036854775807 AS last_token, false AS other, true AS ready
	FROM unguarded.guard g, pg_database d WHERE g.one AND d.datname = current_database()`

// base is a halted server with both installations in database "app". To copy it costs less than to make another. It goes with
// this process.
var base struct {
	sync.Mutex
	server *pgtemp.Server
}

// newServer starts a server of the test's own with both installations.
func newServer(t *testing.T, ttlCap time.Duration, settings map[string]string) *pgtest.Database {
	t.Helper()
	s, err := baseOf(t).Snapshot()
	do(t, "Snapshot", err)
	d := pgtest.Adopt(t, s, "app")
	do(t, "start of the server", errors.Join(s.Set(settings), s.Resume(soon(t))))
	for _, schema := range []string{guarded, unguarded} {
		d.Exec(t, fmt.Sprintf(`UPDATE %s.guard SET started = pg_postmaster_start_time(), cap_us = $1`, schema), ttlCap.Microseconds())
	}
	return d
}

func baseOf(t *testing.T) *pgtemp.Server {
	t.Helper()
	base.Lock()
	defer base.Unlock()
	if base.server == nil {
		made, app := pgtest.OwnServer(t, pgtemp.Options{})
		do(t, "Up", secondInstallation(soon(t), app.URL))
		app.Exec(t, noGuard)
		// To copy files costs the most, and nobody needs these.
		app.Exec(t, `ALTER DATABASE template0 IS_TEMPLATE false`)
		app.Exec(t, `DROP DATABASE template0`)
		do(t, "Halt", made.Halt(soon(t), pgtemp.Fast))
		s, err := made.Snapshot() // the other one ends with the test
		do(t, "Snapshot", err)
		base.server = s
	}
	return base.server
}

func secondInstallation(ctx context.Context, url string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	return migrations.Up(ctx, pool, migrations.Schema(unguarded))
}
