package migrateguard_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock/migrateguard"
)

// A pooler lends the backend of a file to others. They must not write without their foreign keys because a file did, nor be cancelled by
// its timeouts. What the pool's hook has set is there for each file.
func TestAPoolerLendsNothingOnThatAFileHasSet(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, `CREATE TABLE public.seen (version int, settings text)`)
	const settings = `current_setting('session_replication_role') || ' ' || current_setting('lock_timeout') || ' ' ||
		current_setting('work_mem')`
	const sets = `SET session_replication_role = replica; SET lock_timeout = 1; SET work_mem = '64kB'; `
	url := pgtest.PgBouncer(t, d, "default_pool_size = 1") // there is one backend for all
	pool := poolAs(t, url, func(c *pgxpool.Config) {
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, `SET lock_timeout = '7s'`)
			return err
		}
	})
	g, err := migrateguard.New(pool, files(t,
		"1_set.up.sql", sets+`INSERT INTO public.seen VALUES (1, `+settings+`)`,
		"2_role.up.sql", sets+`SET ROLE pg_monitor`,
		"3_see.up.sql", `INSERT INTO public.seen VALUES (3, `+settings+`)`,
		"4_fail.up.sql", sets+`COMMIT; SELECT 1 / 0`,
	), migrateguard.Config{})
	must(t, "New", err)
	wantErr(t, "Up", g.Up(soon(t)), migrateguard.ErrDirty, "division by zero")
	const see = `SELECT settings FROM public.seen WHERE version = $1`
	if got := pgtest.Query[string](t, d, see, 1); got != "replica 1ms 64kB" {
		t.Errorf("the file that sets has %q", got)
	}
	if got := pgtest.Query[string](t, d, see, 3); got != "origin 7s 4MB" {
		t.Errorf("a later file has %q, want what the hook has set, and nothing of an earlier file", got)
	}
	other, err := pgx.Connect(soon(t), url)
	must(t, "Connect", err)
	defer other.Close(context.Background())
	var got string
	must(t, "SELECT", other.QueryRow(soon(t), `SELECT `+settings, pgx.QueryExecModeSimpleProtocol).Scan(&got))
	if got != "origin 7s 4MB" { // what a hook sets is lent on, here as anywhere
		t.Errorf("another client has %q, want nothing that a file has set", got)
	}
}
