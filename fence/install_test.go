package fence_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/migrations"
)

func TestNotMigrated(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	d.Exec(t, createInvoices)
	conn := d.Conn(t)
	check := func() {
		t.Helper()
		err := fence.Tx(t.Context(), conn, grant(7), "report", nothing)
		if !errors.Is(err, fence.ErrNotMigrated) || !strings.Contains(err.Error(), "migrations.Up") {
			t.Errorf("Tx = %v, want ErrNotMigrated", err)
		}
		for name, write := range verbs {
			wantErr(t, name, write(t.Context(), conn, grant(7)), fence.ErrNotMigrated)
		}
	}
	check() // no schema
	d.Exec(t, `CREATE SCHEMA pglock`)
	check() // no functions
}

// A standby, or a session that may not write, is told from an outage.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	primary, standby := pgtest.Standby(t)
	primary.Exec(t, createInvoices+`; INSERT INTO invoices VALUES (1, 'old', 1);
		INSERT INTO pglock.leases (name, token, expires_at) VALUES ('billing', 7, clock_timestamp() + interval '1 h')`)
	standby.WaitReplayed(t, primary)
	session := primary.Conn(t)
	exec(t, session, `SET default_transaction_read_only = on`)
	for where, conn := range map[string]*pgx.Conn{"a standby": standby.Conn(t), "a session": session} {
		check := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, fence.ErrReadOnly) || sqlState(err) != "25006" || !strings.Contains(err.Error(), "primary") {
				t.Errorf("%s of %s = %v, want ErrReadOnly", what, where, err)
			}
		}
		for name, write := range verbs {
			check(name, write(t.Context(), conn, grant(7)))
		}
		check("Tx", fence.Tx(t.Context(), conn, grant(7), "report", nothing))
		check("HeldTx", fence.HeldTx(t.Context(), conn, grant(7), func(context.Context, pgx.Tx) error { return nil }))
		check("Protect", fence.Protect(t.Context(), conn, "invoices"))
	}
	pool := standby.Pool(t) // their fences travel with BEGIN
	wantErr(t, "Tx of a pool", fence.Tx(t.Context(), pool, grant(7), "report", nothing), fence.ErrReadOnly)
	wantErr(t, "StatedTx of a pool", fence.StatedTx(t.Context(), pool, grant(7), nothing), fence.ErrReadOnly)
	wantErr(t, "StatedTx", fence.StatedTx(t.Context(), standby.Conn(t), grant(7), nothing), fence.ErrReadOnly)
}

func TestUsersOwnMistakesAreNotCalledMissingMigrations(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, `CREATE SCHEMA app;
		CREATE TABLE app.checked (id int PRIMARY KEY, status text, fencing_token bigint);
		CREATE FUNCTION app.check() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM app.fence_check(NEW.id); RETURN NEW; END';
		CREATE TRIGGER checked BEFORE INSERT ON app.checked FOR EACH ROW EXECUTE FUNCTION app.check();
		CREATE TABLE app.counted (id int PRIMARY KEY, status text, fencing_token bigint);
		CREATE FUNCTION app.count() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO app.fences VALUES (NEW.id); RETURN NEW; END';
		CREATE TRIGGER counted BEFORE INSERT ON app.counted FOR EACH ROW EXECUTE FUNCTION app.count()`)
	db := d.Pool(t)
	for _, tt := range []struct{ table, code string }{
		{"invoices", "42P01"},
		{"fences", "42P01"},
		{"pglock_app.invoices", "42P01"}, // a schema whose name begins as ours does
		{`"my pglock".invoices`, "42P01"},
		{`"pglock app".fences`, "42P01"},
		{"app.checked", "42883"},
		{"app.counted", "42P01"},
	} {
		table := fence.Table{Name: tt.table, Key: []string{"id"}}
		err := table.Insert(t.Context(), db, grant(7), invoice(1, "x"))
		if sqlState(err) != tt.code || errors.Is(err, fence.ErrNotMigrated) {
			t.Errorf("%s: %v, want %s alone", tt.table, err, tt.code)
		}
	}
}

func TestSchemaOfAnotherName(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	d.Exec(t, createInvoices)
	pool := d.Pool(t)
	const name = `My "locks"`
	if err := migrations.Up(t.Context(), pool, migrations.Schema(name)); err != nil {
		t.Fatal(err)
	}
	here := fence.Schema(name)
	ctx := t.Context()
	wantErr(t, "upsert", invoices.Upsert(ctx, pool, grant(7), invoice(1, "x"), here), nil)
	wantErr(t, "delete", invoices.Delete(ctx, pool, grant(8), key(1), here), nil)
	wantStale(t, "late insert", invoices.Insert(ctx, pool, grant(7), invoice(1, "x"), here), 8)
	wantErr(t, "Tx", fence.Tx(ctx, pool, grant(7), "report", func(pgx.Tx) error { return nil }, here), nil)
	err := fence.Tx(ctx, pool, grant(7), "report", nothing)
	wantErr(t, "the default schema", err, fence.ErrNotMigrated)
}

// A writer has rights on its own table, and what grant_locker gives.
func TestWriterNeedsLittleAndCannotTouchFences(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	writer := d.Role(t)
	d.Exec(t, createInvoices+`; INSERT INTO invoices VALUES (1, 'old', 6);
		GRANT SELECT, INSERT, UPDATE, DELETE ON invoices TO `+writer)
	conn, err := pgx.Connect(t.Context(), d.URLAs(writer))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	ctx := t.Context()
	for name, write := range verbs {
		if err := write(ctx, conn, grant(7)); sqlState(err) != "42501" || !strings.Contains(err.Error(), "grant_locker") {
			t.Errorf("%s without the right = %v, want 42501 and grant_locker", name, err)
		}
	}
	err = fence.Tx(ctx, conn, grant(7), "report", nothing)
	if sqlState(err) != "42501" || !strings.Contains(err.Error(), "grant_locker") {
		t.Errorf("Tx without the right = %v, want 42501 and grant_locker", err)
	}

	d.Exec(t, `SELECT pglock.grant_locker('`+writer+`')`)
	wantErr(t, "update", invoices.Update(ctx, conn, grant(7), invoice(1, "x")), nil)
	wantErr(t, "upsert", invoices.Upsert(ctx, conn, grant(8), invoice(1, "x")), nil)
	wantErr(t, "delete", invoices.Delete(ctx, conn, grant(9), key(1)), nil)
	wantErr(t, "insert", invoices.Insert(ctx, conn, grant(10), invoice(1, "x")), nil)
	wantErr(t, "Tx", fence.Tx(ctx, conn, grant(7), "report", func(pgx.Tx) error { return nil }), nil)
	for _, sql := range []string{
		`SELECT FROM pglock.fences`,
		`INSERT INTO pglock.fences VALUES (0::oid, 'x', 'x', 0, 1)`,
		`UPDATE pglock.fences SET last_token = 1`,
		`DELETE FROM pglock.fences`,
		`TRUNCATE pglock.fences`,
		`SELECT pglock.fence_row_id('invoices', ROW(1))`,
	} {
		if _, err := conn.Exec(ctx, sql); sqlState(err) != "42501" {
			t.Errorf("%s: %v, want 42501", sql, err)
		}
	}
	// What it may call takes no made-up token, and lowers nothing.
	d.Exec(t, `INSERT INTO pglock.leases (name, token) VALUES ('billing', 20)`)
	exec(t, conn, `SELECT pglock.fence_raise('report', 'billing', 0, 99), pglock.fence_row_bury('invoices', ROW(1), 'billing', 0, 99),
		pglock.fence_row_bury('invoices', ROW(2), 'billing', 0, 9), pglock.fence_row_bury('invoices', ROW(2), 'billing', 0, 8),
		pglock.fence_row_revive('invoices', ROW(2), ROW(2), 'billing', 0, 8)`)
	if got := pgtest.Query[string](t, d, `SELECT string_agg(last_token::text, ' ' ORDER BY last_token) FROM pglock.fences WHERE resource <> ''`); got != "7 9" {
		t.Errorf("the fences are at %s, want 7 (the report) and 9 (row 2)", got)
	}
}

// What the writer's session has set up changes nothing for functions that run as the owner.
func TestHijackedSearchPath(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	writer := d.Role(t)
	d.Exec(t, createInvoices+`; GRANT SELECT, INSERT, UPDATE, DELETE ON invoices TO `+writer+`; SELECT pglock.grant_locker('`+writer+`');
		CREATE SCHEMA trap AUTHORIZATION `+writer)
	conn, err := pgx.Connect(t.Context(), d.URLAs(writer))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	exec(t, conn, `CREATE FUNCTION trap.coalesce_trap(bigint, bigint) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE ''trapped as %'', current_user; END';
		CREATE OPERATOR trap.< (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = trap.coalesce_trap);
		CREATE TEMP TABLE fences (relation oid, resource text, name text, slot int, last_token bigint);
		SET search_path = trap, pg_temp, pg_catalog, public`)
	wantErr(t, "Tx", fence.Tx(t.Context(), conn, grant(7), "report", func(pgx.Tx) error { return nil }), nil)
	wantStale(t, "late Tx", fence.Tx(t.Context(), conn, grant(6), "report", nothing), 7)
	exec(t, conn, `SELECT pglock.fence_row_lock('public.invoices', ROW(1), 'billing', 0, 7), pglock.fence_row_bury('public.invoices', ROW(1), 'billing', 0, 7)`)
	if got := tombstones(t, d); got != "7" {
		t.Errorf("the tombstones are %q, want 7", got)
	}
}

func TestDownTakesTheFencesAway(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	pool := d.Pool(t)
	if err := errors.Join(migrations.Up(t.Context(), pool), migrations.Down(t.Context(), pool)); err != nil {
		t.Fatal(err)
	}
	if left := pgtest.Query[int](t, d, `SELECT count(*) FROM pg_proc WHERE proname LIKE 'fence\_%'`); left != 0 {
		t.Errorf("%d functions are left", left)
	}
}
