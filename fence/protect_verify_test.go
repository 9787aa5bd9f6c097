package fence_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

func TestVerifyFindsWhatIsMissing(t *testing.T) {
	t.Parallel()
	for how, protect := range waysToProtect {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			d.Exec(t, createLayouts+`; CREATE FUNCTION nop() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
			conn := d.Conn(t)
			verify := func(what, table string, wants ...string) {
				t.Helper()
				err := fence.Verify(t.Context(), conn, table)
				var found *fence.UnprotectedError
				switch {
				case len(wants) == 0:
					wantErr(t, what, err, nil)
				case !errors.Is(err, fence.ErrUnprotected) || !errors.As(err, &found):
					t.Errorf("%s: %v, want ErrUnprotected", what, err)
				case len(found.Problems) != len(wants):
					t.Errorf("%s: %q, want %q", what, found.Problems, wants)
				default:
					for i, want := range wants {
						if !strings.Contains(found.Problems[i], want) {
							t.Errorf("%s: %q, want %q", what, found.Problems[i], want)
						}
					}
				}
			}
			verify("before", "plain", "plain is not protected")
			for _, table := range []string{"plain", "parted", "base"} {
				wantErr(t, "protect", protect(t.Context(), conn, table), nil)
				verify("after", table)
			}
			d.Exec(t, attachLater)
			verify("attached", "parted", "parted_2 has no trigger fencedlock")
			verify("by a partition", "parted_1a", "parted_2 has no trigger fencedlock")
			d.Exec(t, `CREATE TABLE heir_2 () INHERITS (heir)`)
			both := []string{"heir_2 has no trigger fencedlock", "heir_2 has no trigger fencedlock_row"}
			verify("inherits", "base", both[:map[string]int{"table": 1, "rows": 2}[how]]...)

			row := map[string]string{"table": "", "rows": "_row"}[how]
			for _, c := range []struct{ table, sql, want string }{
				{"plain", `ALTER TABLE plain DISABLE TRIGGER fencedlock` + row, `plain has trigger fencedlock` + row + ` disabled`},
				{"plain", `ALTER TABLE plain ENABLE TRIGGER fencedlock` + row, `not enabled ALWAYS`},
				{"plain", `ALTER TABLE plain ENABLE REPLICA TRIGGER fencedlock`, `not enabled ALWAYS`},
				{"plain", `DROP TRIGGER fencedlock ON plain`, `plain`},
				{"plain", `CREATE OR REPLACE TRIGGER fencedlock BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON plain EXECUTE FUNCTION nop()`, `has another`},
				{"plain", `DROP TRIGGER fencedlock ON plain; CREATE TRIGGER fencedlock BEFORE INSERT ON plain EXECUTE FUNCTION pglock.fence_table()`, `has another`},
				{"parted", `ALTER TABLE ONLY parted_1a DISABLE TRIGGER fencedlock_row`, `parted_1a has trigger fencedlock_row disabled`},
				{"parted", `DROP TRIGGER fencedlock_row ON parted`, `parted has no trigger fencedlock_row`},
				{"parted", `DROP TRIGGER fencedlock ON parted_1`, `parted_1 has no trigger fencedlock`},
				{"base", `DROP TRIGGER fencedlock ON heir`, `heir has no trigger fencedlock`},
			} {
				if how == "rows" && strings.HasSuffix(c.sql, "fence_table()") {
					continue
				}
				wantErr(t, "protect again", protect(t.Context(), conn, c.table), nil)
				verify("mended", c.table)
				d.Exec(t, c.sql)
				err := fence.Verify(t.Context(), conn, c.table)
				if !errors.Is(err, fence.ErrUnprotected) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "SELECT pglock.protect('public."+c.table) {
					t.Errorf("after %s: %v, want %q", c.sql, err, c.want)
				}
			}
			for _, table := range []string{"plain", "parted", "base"} {
				wantErr(t, "protect again", protect(t.Context(), conn, table), nil)
				verify("in the end", table)
			}
			if how != "rows" {
				return
			}
			for _, change := range []string{
				`CREATE OR REPLACE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`,
				`ALTER FUNCTION %s SECURITY INVOKER`,
				`ALTER FUNCTION %s SET search_path = public`,
				`ALTER FUNCTION %s OWNER TO ` + d.Role(t),
			} {
				const function = `SELECT tgfoid::regproc::text FROM pg_trigger WHERE tgrelid = 'plain'::regclass AND tgname = 'fencedlock_row'`
				d.Exec(t, fmt.Sprintf(change, pgtest.Query[string](t, d, function)))
				verify(change, "plain", "its function was changed")
				wantErr(t, "protect again", protect(t.Context(), conn, "plain"), nil)
			}
			verify("in the end", "plain")
		})
	}
}

// Protect tells what it cannot protect, and touches nothing.
func TestWhatCannotBeProtected(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createLayouts+`
		CREATE VIEW seen AS SELECT * FROM plain; CREATE MATERIALIZED VIEW kept AS SELECT * FROM plain; CREATE TEMP TABLE passing (id int);
		CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w; CREATE FOREIGN TABLE far (id int) SERVER s;
		CREATE TABLE mixed (id int) PARTITION BY RANGE (id); CREATE FOREIGN TABLE mixed_far PARTITION OF mixed FOR VALUES FROM (1) TO (2) SERVER s;
		CREATE TABLE base_2 (id int); CREATE TABLE both_of () INHERITS (base_2, heir)`)
	conn := d.Conn(t)
	for table, want := range map[string]string{
		"seen": "not an ordinary", "kept": "not an ordinary", "far": "not an ordinary", "parted_1": "belongs to public.parted", "heir": "belongs to public.base",
		"mixed": "mixed_far is a foreign table", "base": "inherits from several", "pg_class": "not an ordinary",
	} {
		err := fence.Protect(t.Context(), conn, table)
		if !errors.Is(err, fence.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", table, err, want)
		}
	}
	const own = `SELECT array_agg(c.oid::regclass::text) FROM pg_class c WHERE c.relnamespace = 'pglock'::regnamespace AND c.relkind IN ('r', 'p')`
	for _, table := range pgtest.Query[[]string](t, d, own) {
		if err := fence.Protect(t.Context(), conn, table); !errors.Is(err, fence.ErrInvalid) || !strings.Contains(err.Error(), table+": it is one of this library's own") {
			t.Errorf("%s: %v", table, err)
		}
	}
	wantErr(t, "a bad name", fence.Protect(t.Context(), conn, "a b"), fence.ErrInvalid)
	wantErr(t, "a nil database", fence.Protect(t.Context(), nil, "plain"), fence.ErrInvalid)
	wantErr(t, "an option for rows", fence.Protect(t.Context(), conn, "plain", fence.Again()), fence.ErrInvalid)
	wantErr(t, "unprotect a partition", fence.Unprotect(t.Context(), conn, "parted_1"), fence.ErrInvalid)
	if err := fence.Verify(t.Context(), conn, "nowhere"); sqlState(err) != "42P01" || errors.Is(err, fence.ErrNotMigrated) {
		t.Errorf("no such table: %v, want 42P01", err)
	}
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'fencedlock%'`); n != 0 {
		t.Errorf("%d triggers are left", n)
	}
	wantErr(t, "protect", fence.Protect(t.Context(), conn, "plain"), nil)
	wantErr(t, "another way", fence.ProtectRows(t.Context(), conn, "plain", "id"), fence.ErrInvalid)

	fresh := pgtest.Empty(t)
	fresh.Exec(t, `CREATE TABLE plain (id int)`)
	conn = fresh.Conn(t)
	for what, err := range map[string]error{
		"Protect": fence.Protect(t.Context(), conn, "plain"), "Unprotect": fence.Unprotect(t.Context(), conn, "plain"), "Verify": fence.Verify(t.Context(), conn, "plain"),
	} {
		wantErr(t, what, err, fence.ErrNotMigrated)
	}
}

// Unprotect opens the table, and a later Protect goes on from the tokens that were there.
func TestUnprotectKeepsTheFences(t *testing.T) {
	t.Parallel()
	for how, protect := range waysToProtect {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			d := protected(t, how)
			conn := d.Conn(t)
			for _, table := range []string{"plain", "parted", "base"} {
				for range 2 {
					wantErr(t, "unprotect", fence.Unprotect(t.Context(), conn, table), nil)
				}
				d.Exec(t, `UPDATE `+table+` SET note = 'anybody'`)
			}
			const left = `SELECT (SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'fencedlock%') + (SELECT count(*) FROM pg_proc WHERE proname LIKE 'fencedlock%')`
			if n := pgtest.Query[int](t, d, left); n != 0 {
				t.Errorf("%d triggers and functions are left", n)
			}
			wantErr(t, "protect", protect(t.Context(), conn, "parted"), nil)
			tx := begun(t, conn, `SELECT pglock.fence_state('billing', 0, 6)`)
			defer rollback(t, tx)
			_, err := tx.Exec(t.Context(), `UPDATE parted SET note = 'late'`)
			wantStale(t, "late", fence.Explain(err), 7)
		})
	}
}

// A table that comes under one which is not protected is shut, not open: its own fence would be forgotten.
func TestRootThatIsNotProtected(t *testing.T) {
	t.Parallel()
	d := protected(t, "table")
	conn := d.Conn(t)
	d.Exec(t, `CREATE TABLE above (LIKE plain INCLUDING ALL) PARTITION BY RANGE (id);
		ALTER TABLE above ATTACH PARTITION plain FOR VALUES FROM (0) TO (100)`)
	tx := begun(t, conn, `SELECT pglock.fence_state('billing', 0, 8)`)
	if _, err := tx.Exec(t.Context(), `UPDATE plain SET note = 'x'`); sqlState(err) != "FL006" || !strings.Contains(err.Error(), "above") {
		t.Errorf("%v, want FL006 about the table above", err)
	}
	rollback(t, tx)
	wantErr(t, "protect", fence.Protect(t.Context(), conn, "above"), nil)
	tx = begun(t, conn, `SELECT pglock.fence_state('billing', 0, 8)`)
	exec(t, tx, `UPDATE plain SET note = 'x'`)
	rollback(t, tx)
}

// A table that was protected by itself and inherits later is under the fence of the one above, and no longer under its own.
func TestTableThatInheritsLater(t *testing.T) {
	t.Parallel()
	for how, protect := range waysToProtect {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			d := protected(t, how)
			conn := d.Conn(t)
			d.Exec(t, `CREATE TABLE above (LIKE plain); ALTER TABLE plain INHERIT above`)
			wantErr(t, "protect", protect(t.Context(), conn, "above"), nil)
			d.Exec(t, `BEGIN; SELECT pglock.fence_state('billing', 0, 9); INSERT INTO above VALUES (1, 1); COMMIT`)
			tx := begun(t, conn, `SELECT pglock.fence_state('billing', 0, 7)`)
			defer rollback(t, tx)
			_, err := tx.Exec(t.Context(), `UPDATE plain SET note = 'late'`)
			wantStale(t, "late", fence.Explain(err), 9)
		})
	}
}
