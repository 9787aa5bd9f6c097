package fence_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// connAs connects as another role.
func connAs(t *testing.T, d *pgtest.Database, role string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), d.URLAs(role))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	return conn
}

// A writer has the rights on the table, none on anything of ours, and whatever its session can set or make.
func TestWriterCannotGoAroundAProtection(t *testing.T) {
	t.Parallel()
	for how := range waysToProtect {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			d := protected(t, how)
			writer, group := d.Role(t), d.Role(t)
			d.Exec(t, `GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES ON plain, parted TO `+writer+`, `+group+`; GRANT `+group+` TO `+writer+`;
				CREATE SCHEMA trap AUTHORIZATION `+writer+`; GRANT USAGE ON SCHEMA trap TO PUBLIC`)
			conn := connAs(t, d, writer)
			const update = `UPDATE public.plain SET note = 'x'; UPDATE public.parted SET note = 'x'`
			is := func(what, before, want string) {
				t.Helper()
				tx := begun(t, conn, before)
				_, err := tx.Exec(t.Context(), update)
				if sqlState(err) != want {
					t.Errorf("%s: %v, want %q", what, err, want)
				}
				rollback(t, tx)
			}
			// What fence_state would write, by hand: it is no secret, and allows no more than fence_state does.
			forged := func(grant string) string {
				return `SELECT set_config('fencedlock.grant', (SELECT oid FROM pg_namespace WHERE nspname = 'pglock') || ' ' || pg_current_xact_id() || ' ` + grant + `', true)`
			}
			is("nothing", ``, "FL001")
			is("forged", forged("0 7 billing"), "")
			is("forged, stale", forged("0 6 billing"), "FL002")
			is("forged, other lock", forged("0 9 other"), "FL004")
			is("forged, never drawn", forged("0 9007199254740991 billing"), "FL005")
			is("another role", forged("0 6 billing")+`; SET LOCAL ROLE `+group, "FL002")

			exec(t, conn, `CREATE TEMP TABLE fences (relation oid, resource text, name text, slot int, last_token bigint);
				CREATE TEMP TABLE pg_inherits (inhrelid oid, inhparent oid, inhseqno int); CREATE TEMP TABLE pg_trigger (tgrelid oid);
				CREATE FUNCTION trap.f(text, text) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE ''hijacked as %'', current_user; END';
				CREATE OPERATOR trap.= (LEFTARG = text, RIGHTARG = text, FUNCTION = trap.f);
				CREATE OPERATOR trap.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = trap.f);
				CREATE FUNCTION trap.current_setting(text, boolean) RETURNS text LANGUAGE sql AS $$ SELECT 'mine' $$;
				CREATE FUNCTION trap.pg_current_xact_id() RETURNS xid8 LANGUAGE sql AS $$ SELECT '1'::xid8 $$;
				CREATE FUNCTION trap.pg_partition_root(regclass) RETURNS regclass LANGUAGE sql AS $$ SELECT 0::oid::regclass $$;
				CREATE FUNCTION trap.hash_record_extended(record, bigint) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN 1; END $$`)
			const path = `; SET LOCAL search_path = trap, pg_temp, pg_catalog`
			is("a hijacked session, live", forged("0 7 billing")+path, "")
			is("a hijacked session, stale", forged("0 6 billing")+path, "FL002")

			for _, sql := range []string{
				`ALTER TABLE plain DISABLE TRIGGER ALL`, `ALTER TABLE plain DISABLE TRIGGER fencedlock`, `DROP TRIGGER fencedlock ON plain`,
				`CREATE OR REPLACE TRIGGER fencedlock BEFORE INSERT ON plain EXECUTE FUNCTION suppress_redundant_updates_trigger()`,
				`SET session_replication_role = replica`, `SELECT pglock.fence_row_write('plain'::regclass, NULL, ROW(1))`,
				`SELECT pglock.unprotect('plain')`, `UPDATE pglock.fences SET last_token = 1`, `DELETE FROM pglock.fences`,
			} {
				if _, err := conn.Exec(t.Context(), sql); sqlState(err) != "42501" {
					t.Errorf("%s: %v, want 42501", sql, err)
				}
			}
			// What it may call as a locker opens nothing either.
			d.Exec(t, `SELECT pglock.grant_locker('`+writer+`')`)
			for _, sql := range []string{
				`SELECT pglock.fence_write('plain', 'table', NULL)`, `SELECT pglock.fence_lift('plain', 'table', 'billing', 0, 9)`,
				`SELECT pglock.stated_grant('billing', 0, 9)`, `SELECT pglock.fence_row_write('plain'::regclass, NULL, ROW(1))`,
				`SELECT pglock.protect('plain')`, `SELECT pglock.unprotect('plain')`,
			} {
				if _, err := conn.Exec(t.Context(), sql); sqlState(err) != "42501" {
					t.Errorf("%s: %v, want 42501", sql, err)
				}
			}
			is("a locker", `SELECT pglock.fence_state('billing', 0, 6)`, "FL002")
		})
	}
}

// Who owns the table protects it, with a right from the schema's owner; nobody else does.
func TestWhoMayProtect(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	owner, other, writer := d.Role(t), d.Role(t), d.Role(t)
	d.Exec(t, `CREATE SCHEMA app AUTHORIZATION `+owner+`; GRANT USAGE, CREATE ON SCHEMA app TO `+other+`, `+writer)
	a, b, w := connAs(t, d, owner), connAs(t, d, other), connAs(t, d, writer)
	exec(t, a, `CREATE TABLE app.orders (id int, customer int);
		GRANT ALL ON app.orders TO `+other+`; GRANT INSERT ON app.orders TO `+writer+`;
		CREATE FUNCTION app.spy(id int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
			'BEGIN IF id = 99 THEN RAISE ''evaluated as %'', current_user USING ERRCODE = ''ZZ001''; END IF; RETURN id; END'`)
	protect := func(conn *pgx.Conn) map[string]error {
		return map[string]error{
			"Protect":     fence.Protect(t.Context(), conn, "app.orders"),
			"ProtectRows": fence.ProtectRows(t.Context(), conn, "app.orders", "app.spy(customer)"),
			"Unprotect":   fence.Unprotect(t.Context(), conn, "app.orders"),
		}
	}
	for what, err := range protect(a) {
		if sqlState(err) != "42501" || !strings.Contains(err.Error(), "grant_protector") {
			t.Errorf("%s without the right: %v, want 42501 and grant_protector", what, err)
		}
	}
	// A superuser would make triggers that fail at the first write.
	super := d.Conn(t)
	if err := fence.ProtectRows(t.Context(), super, "app.orders", "customer"); sqlState(err) != "42501" || !strings.Contains(err.Error(), "grant_protector('"+owner+"')") {
		t.Errorf("for an owner without the right: %v, want 42501 and grant_protector", err)
	}
	d.Exec(t, `SELECT pglock.grant_protector('`+owner+`'), pglock.grant_protector('`+other+`')`)
	for what, err := range protect(b) {
		if what != "Unprotect" && (sqlState(err) != "42501" || !strings.Contains(err.Error(), "belongs to role "+owner)) {
			t.Errorf("%s of another's table: %v, want 42501", what, err)
		}
	}
	for _, conn := range []*pgx.Conn{a, super} {
		wantErr(t, "protect", fence.ProtectRows(t.Context(), conn, "app.orders", "app.spy(customer)"), nil)
		if err := fence.Unprotect(t.Context(), b, "app.orders"); sqlState(err) != "42501" {
			t.Errorf("unprotect of another's table: %v, want 42501", err)
		}
		wantErr(t, "Verify", fence.Verify(t.Context(), a, "app.orders"), nil)
		const owners = `SELECT string_agg(DISTINCT proowner::regrole::text, ' ') FROM pg_proc WHERE proname LIKE 'fencedlock%'`
		if got := pgtest.Query[string](t, d, owners); got != owner {
			t.Errorf("the key's functions belong to %s, want %s", got, owner)
		}
		// The writer knows nothing of us, and so the key is the owner's to evaluate, not the schema owner's.
		_, err := w.Exec(t.Context(), `INSERT INTO app.orders VALUES (1, 1)`)
		wantErr(t, "a writer that says nothing", fence.Explain(err), fence.ErrNotStated)
		tx := begun(t, w, `SELECT set_config('fencedlock.grant', (SELECT oid FROM pg_namespace WHERE nspname = 'pglock') || ' ' || pg_current_xact_id() || ' 0 7 billing', true)`)
		exec(t, tx, `INSERT INTO app.orders VALUES (1, 1)`)
		if _, err = tx.Exec(t.Context(), `INSERT INTO app.orders VALUES (1, 99)`); sqlState(err) != "ZZ001" || !strings.Contains(err.Error(), "evaluated as "+owner) {
			t.Errorf("%v, want it evaluated as the table's owner", err)
		}
		rollback(t, tx)
		// Nobody can hang the owner's function on a table of his own.
		fn := pgtest.Query[string](t, d, `SELECT tgfoid::regproc::text FROM pg_trigger WHERE tgname = 'fencedlock_row'`)
		if _, err := w.Exec(t.Context(), `CREATE TABLE app.mine (customer int); CREATE TRIGGER x AFTER INSERT ON app.mine FOR EACH ROW EXECUTE FUNCTION `+fn+`('x')`); sqlState(err) != "42501" {
			t.Errorf("another's trigger: %v, want 42501", err)
		}
		wantErr(t, "Unprotect", fence.Unprotect(t.Context(), a, "app.orders"), nil)
	}
	d.Exec(t, `SELECT pglock.grant_locker('`+writer+`')`)
	wantErr(t, "Verify by a locker", fence.Verify(t.Context(), w, "app.orders"), fence.ErrUnprotected)
}
