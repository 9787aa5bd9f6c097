package fence_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// accounts is a table with a key of every kind. under writes one statement under a lock and returns its error.
func accounts(t *testing.T, key string) (*pgtest.Database, func(g fence.Grant, sql string) error) {
	t.Helper()
	d := pgtest.DB(t)
	d.Exec(t, `CREATE TABLE accounts (id int, tenant text, email varchar(80), day date, at timestamptz, amount numeric,
		"odd ""name" int, lower text GENERATED ALWAYS AS (lower(email)) STORED)`)
	conn := d.Conn(t)
	wantErr(t, "protect by "+key, fence.ProtectRows(t.Context(), conn, "accounts", key), nil)
	return d, func(g fence.Grant, sql string) error {
		t.Helper()
		tx := begun(t, conn, ``)
		wantErr(t, "State", fence.State(t.Context(), tx, g), nil)
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			rollback(t, tx)
			return fence.Explain(err)
		}
		commit(t, tx)
		return nil
	}
}

func lock(name string, token fence.Token) fence.Grant { return fence.Grant{Lock: name, Token: token} }

// Rows meet in one fence when their keys are equal, and only then.
func TestKeyExpressions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ key, column, one, same, other string }{
		{`id`, `id`, `1`, `1`, `2`},
		{`id -- the number`, `id`, `1`, `1`, `2`},
		{`id`, `id`, `NULL`, `NULL`, `1`},
		{`lower(email)`, `email`, `'Ann@x'`, `'ANN@X'`, `'bob@x'`},
		{`lower`, `email`, `'Ann@x'`, `'ANN@X'`, `'bob@x'`}, // a generated column
		{`tenant || '/' || id::text`, `tenant, id`, `'a', 1`, `'a', 1`, `'a', 2`},
		{`amount`, `amount`, `1.0`, `1.00`, `1.01`},
		{`day`, `day`, `'2027-02-01'`, `'2027-02-01'`, `'2027-01-02'`},
		{`"odd ""name"`, `"odd ""name"`, `1`, `1`, `2`},
		{`coalesce(tenant, '')`, `tenant`, `NULL`, `''`, `'a'`},
	} {
		t.Run(c.key+" "+c.one, func(t *testing.T) {
			t.Parallel()
			_, under := accounts(t, c.key)
			insert := func(g fence.Grant, values string) error {
				return under(g, fmt.Sprintf(`INSERT INTO accounts (%s) VALUES (%s)`, c.column, values))
			}
			wantErr(t, "the first", insert(lock("a", 7), c.one), nil)
			wantErr(t, "another lock, same key", insert(lock("b", 9), c.same), fence.ErrOtherLock)
			wantStale(t, "an earlier token, same key", insert(lock("a", 6), c.same), 7)
			wantErr(t, "another lock, other key", insert(lock("b", 1), c.other), nil)
		})
	}
}

// An update that moves a row counts for the fence it leaves and for the one it comes under.
func TestUpdateOfTheKeyNeedsBothFences(t *testing.T) {
	t.Parallel()
	_, under := accounts(t, "id")
	wantErr(t, "row 1", under(lock("a", 7), `INSERT INTO accounts (id) VALUES (1)`), nil)
	wantErr(t, "row 2", under(lock("b", 5), `INSERT INTO accounts (id) VALUES (2)`), nil)
	wantErr(t, "into another's", under(lock("a", 7), `UPDATE accounts SET id = 2 WHERE id = 1`), fence.ErrOtherLock)
	wantErr(t, "out of another's", under(lock("b", 5), `UPDATE accounts SET id = 2 WHERE id = 1`), fence.ErrOtherLock)
	wantErr(t, "out of its own", under(lock("a", 8), `UPDATE accounts SET id = 3 WHERE id = 1`), nil)
	wantStale(t, "back, late", under(lock("a", 7), `INSERT INTO accounts (id) VALUES (1)`), 8)
	wantStale(t, "there, late", under(lock("a", 7), `INSERT INTO accounts (id) VALUES (3)`), 8)
}

// The row counts as it is stored, whatever triggers of the table make of it.
func TestKeyIsThatOfTheStoredRow(t *testing.T) {
	t.Parallel()
	d, under := accounts(t, "id")
	d.Exec(t, `CREATE FUNCTION last() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.id := 1; RETURN NEW; END';
		CREATE TRIGGER zzz BEFORE INSERT ON accounts FOR EACH ROW EXECUTE FUNCTION last()`)
	wantErr(t, "the first", under(lock("a", 7), `INSERT INTO accounts (id) VALUES (1)`), nil)
	wantErr(t, "as another key", under(lock("b", 9), `INSERT INTO accounts (id) VALUES (2)`), fence.ErrOtherLock)
}

// What a session has set never chooses the fence: a key that hangs on it is refused where it is installed, as one is that
// cannot be hashed, has no single value, or is not of the row.
func TestKeysThatCannotBe(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, `CREATE TABLE accounts (id int, day date, at timestamptz, doc json)`)
	conn := d.Conn(t)
	for _, key := range []string{
		"day::text", "at::date", "current_user || id::text", "random() + id", "doc", "generate_series(1, id)", "count(id)", "(SELECT id)",
		"ctid", "42", " ", "id, day", "id)) --",
	} {
		err := fence.ProtectRows(t.Context(), conn, "accounts", key)
		if err == nil {
			t.Errorf("protected by %s", key)
		}
		if code := sqlState(err); !errors.Is(err, fence.ErrInvalid) && code != "42601" {
			t.Errorf("%s: %v, want ErrInvalid or a syntax error", key, err)
		}
	}
	wantErr(t, "no key", fence.ProtectRows(t.Context(), conn, "accounts", ""), fence.ErrInvalid)
	if n := pgtest.Query[int](t, d, `SELECT (SELECT count(*) FROM pg_trigger) + (SELECT count(*) FROM pg_proc WHERE proname LIKE 'fencedlock%')`); n != 0 {
		t.Errorf("%d triggers and functions are left", n)
	}
}

// A key means what it meant to whoever installed it: not what a writer's session can find under the same name.
func TestKeyIsNotHijacked(t *testing.T) {
	t.Parallel()
	d, under := accounts(t, "lower(email)")
	wantErr(t, "the first", under(lock("a", 7), `INSERT INTO accounts (email) VALUES ('Ann')`), nil)
	d.Exec(t, `CREATE FUNCTION public.lower(varchar) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'mine' $$;
		CREATE SCHEMA trap; CREATE FUNCTION trap.lower(varchar) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'mine' $$;
		CREATE FUNCTION trap.ne(text, text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$ SELECT false $$;
		CREATE OPERATOR trap.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = trap.ne)`)
	wantErr(t, "a writer with a trap", under(lock("b", 9), `SET LOCAL search_path = trap, public, pg_catalog; INSERT INTO public.accounts (email) VALUES ('ANN')`),
		fence.ErrOtherLock)
}

// What happens to the table afterwards closes it, or is found by Verify; it opens nothing.
func TestTableThatChangesUnderItsKey(t *testing.T) {
	t.Parallel()
	d, under := accounts(t, "id")
	conn := d.Conn(t)
	wantErr(t, "row", under(lock("a", 7), `INSERT INTO accounts (id) VALUES (1)`), nil)
	d.Exec(t, `ALTER TABLE accounts RENAME TO clients`)
	wantErr(t, "renamed", under(lock("b", 9), `UPDATE clients SET amount = 1`), fence.ErrOtherLock)
	wantErr(t, "Verify", fence.Verify(t.Context(), conn, "clients"), nil)

	d.Exec(t, `ALTER TABLE clients ALTER id TYPE bigint`)
	if err := under(lock("b", 9), `UPDATE clients SET amount = 1`); err == nil { // PostgreSQL's own error on connections that have written before
		t.Error("another type: it was written")
	}
	wantErr(t, "Verify", fence.Verify(t.Context(), conn, "clients"), fence.ErrUnprotected)
	wantErr(t, "protect again", fence.ProtectRows(t.Context(), conn, "clients", "id"), nil)
	wantErr(t, "Verify", fence.Verify(t.Context(), conn, "clients"), nil)
	wantErr(t, "protected again", under(lock("b", 9), `UPDATE clients SET amount = 1`), fence.ErrOtherLock)

	d.Exec(t, `ALTER TABLE clients RENAME id TO number`)
	if err := under(lock("a", 7), `UPDATE clients SET amount = 1`); sqlState(err) != "42703" {
		t.Errorf("a renamed column: %v, want 42703", err)
	}
	wantErr(t, "Verify", fence.Verify(t.Context(), conn, "clients"), fence.ErrUnprotected)
	wantErr(t, "unprotect", fence.Unprotect(t.Context(), conn, "clients"), nil)
	wantErr(t, "protect again", fence.ProtectRows(t.Context(), conn, "clients", "number"), nil)
	wantErr(t, "protected again", under(lock("b", 9), `UPDATE clients SET amount = 1`), fence.ErrOtherLock)

	// A table that is dropped without a word leaves two functions, and what has its name later is protected beside them.
	d.Exec(t, `DROP TABLE clients; CREATE TABLE clients (number int)`)
	wantErr(t, "protect the new one", fence.ProtectRows(t.Context(), conn, "clients", "number"), nil)
	wantErr(t, "unprotect", fence.Unprotect(t.Context(), conn, "clients"), nil)
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pg_proc WHERE proname LIKE 'fencedlock%'`); n != 2 {
		t.Errorf("%d functions are left, want the two of the table that was dropped", n)
	}
}
