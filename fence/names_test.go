package fence_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// lifeOf takes one row of a table through everything, and checks that the key is found each time.
func lifeOf(t *testing.T, d *pgtest.Database, table fence.Table, key fence.Row, column string, value any) {
	t.Helper()
	ctx, db := t.Context(), d.Pool(t)
	row := fence.Row{column: value}
	for name, v := range key {
		row[name] = v
	}
	wantErr(t, "update of nothing", table.Update(ctx, db, grant(1), row), fence.ErrNoRow)
	wantErr(t, "insert", table.Insert(ctx, db, grant(1), row), nil)
	wantErr(t, "update", table.Update(ctx, db, grant(2), row), nil)
	wantErr(t, "upsert", table.Upsert(ctx, db, grant(3), row), nil)
	wantStale(t, "late update", table.Update(ctx, db, grant(2), row), 3)
	wantStale(t, "late delete", table.Delete(ctx, db, grant(2), key), 3)
	wantErr(t, "delete", table.Delete(ctx, db, grant(4), key), nil)
	wantStale(t, "late update of a deleted row", table.Update(ctx, db, grant(3), row), 4)
	wantStale(t, "late delete of a deleted row", table.Delete(ctx, db, grant(3), key), 4)
	wantStale(t, "late insert", table.Insert(ctx, db, grant(3), row), 4)
	wantStale(t, "late upsert", table.Upsert(ctx, db, grant(3), row), 4)
	wantErr(t, "insert after the delete", table.Insert(ctx, db, grant(5), row), nil)
	if left := tombstones(t, d); left != "" {
		t.Errorf("the tombstone %s outlived the insert", left)
	}
}

func TestOddNames(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, `CREATE SCHEMA "Odd ""Schema"""; CREATE TABLE "Odd ""Schema"""."it's \ a.Table" (
		"Key, one" int, "key""2" text, "the value" text, "T$" bigint, PRIMARY KEY ("Key, one", "key""2"))`)
	table := fence.Table{Name: `"Odd ""Schema"""."it's \ a.Table"`, Key: []string{"Key, one", `key"2`}, TokenColumn: "T$"}
	lifeOf(t, d, table, fence.Row{"Key, one": 1, `key"2`: "{key}"}, "the value", "{table}")
}

func TestCapitalsOfAnUnquotedNameAreSmall(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, `CREATE SCHEMA billing; CREATE TABLE billing.invoices (id int PRIMARY KEY, status text, fencing_token bigint)`)
	lifeOf(t, d, fence.Table{Name: "Billing.INVOICES", Key: []string{"id"}}, key(1), "status", "x")
}

// Tables and columns called like the parts of our statements.
func TestNamesOfOurOwn(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	for _, name := range []string{"k", "r", "w", "g", "t", "x", "last"} {
		d.Exec(t, strings.ReplaceAll(`CREATE TABLE NAME (NAME int PRIMARY KEY, n text, fencing_token bigint)`, "NAME", name))
		lifeOf(t, d, fence.Table{Name: name, Key: []string{name}}, fence.Row{name: 1}, "n", "x")
	}
}

func TestKeyTypes(t *testing.T) {
	t.Parallel()
	uuid := "0b5e7a52-8d4b-4a4e-9d5e-9c4a1f3d2e10"
	keys := map[string]struct {
		key   any
		equal any // the same key, said otherwise
	}{
		"smallint":                     {int16(1), 1},
		"bigint":                       {int64(1) << 40, int64(1) << 40},
		"text":                         {"a", "a"},
		`text COLLATE "C"`:             {"a", "a"},
		"varchar(5)":                   {"a", "a"},
		"char(5)":                      {"a", "a    "},
		"uuid":                         {uuid, strings.ToUpper(uuid)},
		"numeric":                      {"1.0", "1.00"},
		"float8":                       {0.0, "-0"},
		"date":                         {time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)},
		"timestamptz":                  {time.Unix(1e9, 0).UTC(), time.Unix(1e9, 0).In(time.FixedZone("", 3600))},
		"bytea":                        {[]byte{0, 1}, []byte{0, 1}},
		"inet":                         {"10.0.0.1", "10.0.0.1/32"},
		"jsonb":                        {map[string]any{"a": 1, "b": 2}, map[string]any{"b": 2, "a": 1}},
		"int[]":                        {[]int{1, 2}, []int32{1, 2}},
		"int4range":                    {"[1,2]", "[1,3)"},
		"mood":                         {"glad", "glad"},
		"email":                        {"a@b", "a@b"},
		"text COLLATE case_insensitve": {"Straße", "STRASSE"},
	}
	d := pgtest.DB(t)
	d.Exec(t, `CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE DOMAIN email AS text CHECK (VALUE LIKE '%@%');
		CREATE COLLATION case_insensitve (provider = icu, locale = 'und-u-ks-level1', deterministic = false)`)
	pool := d.Pool(t)
	u, err := url.Parse(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("default_query_exec_mode", "simple_protocol") // values stand in the text, as literals without a type
	u.RawQuery = q.Encode()
	simple := fence.SQL(openSQL(t, u.String()))
	for i, typ := range slices.Sorted(maps.Keys(keys)) {
		tt := keys[typ]
		t.Run(typ, func(t *testing.T) {
			invoices := fence.Table{Name: fmt.Sprint("invoices", i), Key: []string{"id"}}
			d.Exec(t, `CREATE TABLE `+invoices.Name+` (id `+typ+` PRIMARY KEY, status text, fencing_token bigint)`)
			row, same := fence.Row{"id": tt.key, "status": "x"}, fence.Row{"id": tt.equal, "status": "y"}
			ctx := t.Context()
			wantErr(t, "insert", invoices.Insert(ctx, pool, grant(1), row), nil)
			wantErr(t, "upsert", invoices.Upsert(ctx, pool, grant(2), same), nil)
			wantErr(t, "update", invoices.Update(ctx, pool, grant(3), row), nil)
			wantErr(t, "delete", invoices.Delete(ctx, pool, grant(4), fence.Row{"id": tt.equal}), nil)
			wantStale(t, "late insert", invoices.Insert(ctx, pool, grant(3), row), 4)
			wantStale(t, "late update", invoices.Update(ctx, pool, grant(3), same), 4)
			if typ != "jsonb" { // as which pgx does not write a map there
				wantStale(t, "late update as text", invoices.Update(ctx, simple, grant(3), row), 4)
				wantStale(t, "late insert as text", invoices.Insert(ctx, simple, grant(3), same), 4)
			}
			wantStale(t, "late delete", invoices.Delete(ctx, pool, grant(3), fence.Row{"id": tt.key}), 4)
			wantErr(t, "insert", invoices.Insert(ctx, pool, grant(5), row), nil)
		})
	}
}

// A column that rounds its key would let it past the tombstone of the key that it becomes.
func TestKeyThatIsStoredAsAnotherIsRefused(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, `CREATE TABLE invoices (id numeric(10,1) PRIMARY KEY, status text, fencing_token bigint)`)
	ctx, db := t.Context(), d.Conn(t)
	row := func(id string) fence.Row { return fence.Row{"id": id, "status": "x"} }
	wantErr(t, "insert", invoices.Insert(ctx, db, grant(1), row("1.5")), nil)
	wantErr(t, "delete", invoices.Delete(ctx, db, grant(3), fence.Row{"id": "1.5"}), nil)
	for _, verb := range []func() error{
		func() error { return invoices.Insert(ctx, db, grant(2), row("1.51")) },
		func() error { return invoices.Upsert(ctx, db, grant(2), row("1.51")) },
	} {
		if err := verb(); sqlState(err) != "22023" || !strings.Contains(err.Error(), "(1.51) was stored as (1.5)") {
			t.Errorf("%v, want the two keys", err)
		}
	}
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM invoices`); n != 0 {
		t.Error("the row is back")
	}
}

// The tombstone is of the whole table, whichever part of it a write names.
func TestPartitions(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, `CREATE TABLE invoices (id int PRIMARY KEY, status text, fencing_token bigint) PARTITION BY RANGE (id);
		CREATE TABLE low PARTITION OF invoices FOR VALUES FROM (0) TO (10);
		CREATE TABLE high PARTITION OF invoices FOR VALUES FROM (10) TO (20)`)
	lifeOf(t, d, invoices, key(1), "status", "x")
	ctx, db := t.Context(), d.Conn(t)
	low := fence.Table{Name: "low", Key: []string{"id"}}
	wantErr(t, "delete from the partition", low.Delete(ctx, db, grant(9), key(1)), nil)
	wantStale(t, "late insert into the whole", invoices.Insert(ctx, db, grant(8), invoice(1, "x")), 9)
}

// Writers agree on the key, whichever of its columns each of them names first.
func TestOrderOfTheKeyColumnsDoesNotMatter(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, `CREATE TABLE entries (account int, id int, amount int, fencing_token bigint, PRIMARY KEY (account, id))`)
	ctx, db := t.Context(), d.Conn(t)
	entries := fence.Table{Name: "entries", Key: []string{"account", "id"}}
	turned := fence.Table{Name: "entries", Key: []string{"id", "account"}}
	key := fence.Row{"account": 1, "id": 2}
	row := fence.Row{"account": 1, "id": 2, "amount": 3}
	wantErr(t, "insert", entries.Insert(ctx, db, grant(5), row), nil)
	wantErr(t, "delete", entries.Delete(ctx, db, grant(7), key), nil)
	wantStale(t, "late insert", turned.Insert(ctx, db, grant(6), row), 7)
	wantStale(t, "late upsert", turned.Upsert(ctx, db, grant(6), row), 7)
	wantStale(t, "late update", turned.Update(ctx, db, grant(6), row), 7)
	wantStale(t, "late delete", turned.Delete(ctx, db, grant(6), key), 7)
	wantErr(t, "insert after the delete", turned.Insert(ctx, db, grant(8), row), nil)
	if left := tombstones(t, d); left != "" {
		t.Errorf("the tombstone %s outlived the insert", left)
	}
	if turned.Key[0] != "id" {
		t.Errorf("the caller's key was sorted: %q", turned.Key)
	}
}

func TestRowOfKeyAndTokenOnly(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	ctx, db := t.Context(), d.Conn(t)
	wantErr(t, "insert", invoices.Insert(ctx, db, grant(1), key(1)), nil)
	wantErr(t, "update", invoices.Update(ctx, db, grant(2), key(1)), nil)
	wantErr(t, "upsert", invoices.Upsert(ctx, db, grant(3), key(1)), nil)
	wantStale(t, "late upsert", invoices.Upsert(ctx, db, grant(2), key(1)), 3)
}

func TestKeyMustBeUnique(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, `CREATE TABLE invoices (id int, status text, fencing_token bigint); INSERT INTO invoices VALUES (1, 'a'), (1, 'b')`)
	ctx, db := t.Context(), d.Conn(t)
	for name, write := range verbs {
		if err := write(ctx, db, grant(1)); !errors.Is(err, fence.ErrInvalid) && sqlState(err) != "42P10" {
			t.Errorf("%s = %v, want it refused", name, err)
		}
	}
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM invoices WHERE fencing_token IS NULL`); n != 2 {
		t.Errorf("%d of 2 rows are as they were", n)
	}
	if left := tombstones(t, d); left != "" {
		t.Errorf("a tombstone %s was left", left)
	}
}

func TestMissingTokenColumn(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, `CREATE TABLE invoices (id int PRIMARY KEY, status text)`)
	for name, write := range verbs {
		err := write(t.Context(), d.Conn(t), grant(1))
		const cure = `ALTER TABLE "invoices" ADD COLUMN "fencing_token" bigint NOT NULL DEFAULT 0`
		if err == nil || !strings.Contains(err.Error(), cure) || sqlState(err) != "42703" {
			t.Errorf("%s = %v, want %s", name, err, cure)
		}
	}
}

// A column that cannot hold a token: most of them say so at the first write, and a narrow one when the real tokens come.
func TestTokenColumnOfAnotherType(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	const token = 1795981618819744
	for _, typ := range []string{"int", "smallint", "numeric", "float8", "text", "money"} {
		d.Exec(t, `DROP TABLE IF EXISTS invoices; CREATE TABLE invoices (id int PRIMARY KEY, status text, fencing_token `+typ+`); INSERT INTO invoices VALUES (1, 'old')`)
		for _, name := range []string{"Update", "Upsert"} {
			const cure = `ALTER TABLE "invoices" ALTER COLUMN "fencing_token" TYPE bigint`
			err := verbs[name](t.Context(), d.Conn(t), grant(token))
			if err == nil || !strings.Contains(err.Error(), cure) || errors.Is(err, fence.ErrNotMigrated) {
				t.Errorf("%s of a token of type %s = %v, want %s", name, typ, err, cure)
			}
		}
	}
	d.Exec(t, `DROP TABLE invoices; CREATE TABLE invoices (id int PRIMARY KEY, status text, fencing_token int)`)
	wantErr(t, "a token that fits", invoices.Insert(t.Context(), d.Conn(t), grant(7), invoice(1, "x")), nil)
}

// A trigger that puts another token beside what is written, or moves it under another key, would let an earlier grant write
// over it.
func TestTriggerThatChangesTokenOrKeyIsRefused(t *testing.T) {
	t.Parallel()
	writes := maps.Clone(verbs)
	delete(writes, "Delete")
	writes["Rekey"] = func(ctx context.Context, db fence.DB, g fence.Grant, opts ...fence.Option) error {
		return invoices.Rekey(ctx, db, g, key(1), key(2), opts...)
	}
	writes["UpdateRows"] = func(ctx context.Context, db fence.DB, g fence.Grant, opts ...fence.Option) error {
		return invoices.UpdateRows(ctx, db, g, []fence.Row{invoice(3, "x"), invoice(1, "x")}, opts...)
	}
	for what, body := range map[string]string{
		"lowers the token":  `NEW.fencing_token := 0`,
		"takes the token":   `NEW.fencing_token := NULL`,
		"raises the token":  `NEW.fencing_token := 99`,
		"keeps the old row": `NEW := coalesce(OLD, NEW); NEW.fencing_token := OLD.fencing_token`,
		"changes the key":   `NEW.id := 7`,
		"changes both":      `NEW.id := 7; NEW.fencing_token := 0`,
	} {
		for name, write := range writes {
			t.Run(name+" "+what, func(t *testing.T) {
				t.Parallel()
				d := pgtest.DB(t)
				d.Exec(t, createInvoices+`; CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN `+body+`; RETURN NEW; END'`)
				if name != "Insert" {
					d.Exec(t, `INSERT INTO invoices VALUES (1, 'old', 1), (3, 'old', 1)`)
				}
				d.Exec(t, `CREATE TRIGGER change BEFORE INSERT OR UPDATE ON invoices FOR EACH ROW EXECUTE FUNCTION change()`)
				before := pgtest.Query[string](t, d, allSQL)
				if err := write(t.Context(), d.Conn(t), grant(9)); err == nil || !strings.Contains(err.Error(), "stored as") && !strings.Contains(err.Error(), "a trigger") && sqlState(err) != "23505" {
					t.Errorf("%v, want it to tell of a trigger", err)
				}
				if got := pgtest.Query[string](t, d, allSQL); got != before {
					t.Errorf("left %q, want %q", got, before)
				}
			})
		}
	}
}

func TestTriggerThatSwallowsTheWrite(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices+`; INSERT INTO invoices VALUES (1, 'old', 1);
		CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER swallow BEFORE UPDATE OR DELETE ON invoices FOR EACH ROW EXECUTE FUNCTION swallow()`)
	for _, name := range []string{"Update", "Upsert", "Delete"} {
		if err := verbs[name](t.Context(), d.Conn(t), grant(7)); err == nil || !strings.Contains(err.Error(), "trigger") {
			t.Errorf("%s = %v, want it to tell of a trigger", name, err)
		}
	}
	if got := state(t, d) + tombstones(t, d); got != "old 1" {
		t.Errorf("%q, want the row as it was", got)
	}
}
