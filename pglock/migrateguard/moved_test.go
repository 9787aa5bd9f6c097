package migrateguard_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock/migrateguard"
)

// ran is which migrations have run, in order.
func ran(t testing.TB, d *pgtest.Database) string {
	t.Helper()
	return pgtest.Query[string](t, d, `SELECT coalesce(string_agg(version::text, ' ' ORDER BY version), '') FROM public.runs`)
}

// What a file sets for the session, as pg_dump's do, moves neither the version table nor the files after it.
func TestAFileThatMovesTheSessionMovesNothingElse(t *testing.T) {
	t.Parallel()
	for name, moves := range map[string]string{
		"nowhere":               `SELECT pg_catalog.set_config('search_path', '', false)`,
		"another schema":        `CREATE SCHEMA app; SET search_path = app`,
		"a schema of the user":  `CREATE SCHEMA AUTHORIZATION CURRENT_USER`,
		"another role":          `SET ROLE low`,
		"another encoding":      `SET client_encoding = 'LATIN1'`,
		"another session role":  `SET SESSION AUTHORIZATION low`,
		"another role and path": `SET SESSION AUTHORIZATION low; SET ROLE low; SET search_path = pg_catalog`,
	} {
		for kind, cfg := range map[string]migrateguard.Config{"lease": {}, "session": {Session: true}} {
			t.Run(name+" with a "+kind, func(t *testing.T) {
				t.Parallel()
				d := pgtest.Empty(t)
				d.Exec(t, runs)
				low := d.Role(t)
				pool := poolAs(t, d.URL, func(c *pgxpool.Config) {
					c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
						_, err := conn.Exec(ctx, `SET search_path = "$user", public, pg_catalog`)
						return err
					}
				})
				g, err := migrateguard.New(pool, files(t,
					"1_move.up.sql", "INSERT INTO public.runs VALUES (1); "+strings.ReplaceAll(moves, "low", low),
					"2_next.up.sql", "INSERT INTO public.runs SELECT 2 WHERE current_setting('search_path') = '\"$user\", public, pg_catalog' AND (SELECT usesuper FROM pg_user WHERE usename = current_user) AND length('é') = 1",
					"3_last.up.sql", "INSERT INTO public.runs VALUES (3)"), cfg)
				must(t, "New", err)
				must(t, "Up", g.Up(soon(t)))
				if got := ran(t, d); got != "1 2 3" {
					t.Errorf("the migrations that ran are %s, want each once, as the pool's hook has it", got)
				}
				wantVersion(t, d, "3")
			})
		}
	}
}

// A file drops the schema with everything in it, the version table too, as the last one of a way down may: the version is recorded all the same.
// Without it the next call would run again what has run.
func TestAFileThatDropsTheVersionTable(t *testing.T) {
	t.Parallel()
	for kind, cfg := range map[string]migrateguard.Config{"lease": {}, "session": {Session: true}} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			d := pgtest.Empty(t)
			d.Exec(t, `CREATE SCHEMA kept; CREATE TABLE kept.runs (version int)`)
			anew := "DROP SCHEMA public CASCADE; CREATE SCHEMA public; INSERT INTO kept.runs VALUES "
			g := open(t, d.URL, files(t,
				"1_first.up.sql", "INSERT INTO kept.runs VALUES (1)", "1_first.down.sql", anew+"(-1)",
				"2_anew.up.sql", anew+"(2)",
				"3_last.up.sql", "INSERT INTO kept.runs VALUES (3)"), cfg)
			must(t, "Up", g.Up(soon(t)))
			must(t, "Up again", g.Up(soon(t)))
			wantVersion(t, d, "3")
			must(t, "Down", g.Down(soon(t)))
			wantVersion(t, d, "nothing")
			if got := pgtest.Query[string](t, d, `SELECT string_agg(version::text, ' ') FROM kept.runs`); got != "1 2 3 -1" {
				t.Errorf("the migrations that ran are %s, want each once", got)
			}
		})
	}
}

// A waiter goes by the version table that it has seen, though the runner has made a schema that comes before.
func TestAWaiterKeepsToItsVersionTable(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	gate := newGate(t, d)
	guard := func(cfg migrateguard.Config) *migrateguard.Guard {
		return open(t, d.URL, files(t, "1_a.up.sql", gated, "2_b.up.sql", "INSERT INTO public.runs VALUES (2); CREATE SCHEMA AUTHORIZATION CURRENT_USER"), cfg)
	}
	runner := async(func() error { return guard(migrateguard.Config{}).Up(soon(t)) })
	atWork(t, d)
	told, notify := events()
	waiter := async(func() error { return guard(migrateguard.Config{Notify: notify}).Up(soon(t)) })
	next(t, told, migrateguard.Waiting)
	gate.release()
	must(t, "Up of the runner", happens(t, "the runner ends", runner))
	must(t, "Up of the waiter", happens(t, "the waiter ends", waiter))
	if got := ran(t, d); got != "2" {
		t.Errorf("the migrations that ran are %s, want 2 once", got)
	}
	wantVersion(t, d, "2")
}
