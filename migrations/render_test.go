package migrations_test

import (
	"fmt"
	"io/fs"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/migrations"
)

func TestRenderReplacesTheSchemaAndNothingElse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ sql, want string }{
		{`SELECT pglock.x FROM pglock.y`, `SELECT "o'""o".x FROM "o'""o".y`},
		{`'pglock.x'::regclass`, `'"o''""o".x'::regclass`},
		{`EXECUTE 'GRANT x ON pglock.y TO ' || z`, `EXECUTE 'GRANT x ON "o''""o".y TO ' || z`},
		{`mypglock pglock_x pglock2 épglock $pglock`, `mypglock pglock_x pglock2 épglock $"o'""o"`},
		{"-- pglock isn't\npglock -- it's pglock", "-- pglock isn't\n\"o'\"\"o\" -- it's pglock"},
		{`/* pglock's */ pglock`, `/* pglock's */ "o'""o"`},
		{`'it''s pglock' pglock '--' pglock '"' pglock`, `'it''s "o''""o"' "o'""o" '--' "o'""o" '"' "o'""o"`},
		{`"a pglock" "it's" pglock`, `"a pglock" "it's" "o'""o"`},
		{`"pglock".x '"pglock".x'`, `"o'""o".x '"o''""o".x'`},
		{`AS $$pglock.x '1' $$ pglock`, `AS $$"o'""o".x '1' $$ "o'""o"`},
	} {
		if got := migrations.Render(c.sql, `o'"o`); got != c.want {
			t.Errorf("render %s\n got %s\nwant %s", c.sql, got, c.want)
		}
		if got := migrations.Render(c.sql, "pglock"); got != c.sql {
			t.Errorf("render for pglock changes %s into %s", c.sql, got)
		}
	}
}

// What render relies on, and what runs as it is with psql -1.
func TestFilesKeepTheirRules(t *testing.T) {
	t.Parallel()
	names, err := fs.Glob(migrations.Embedded, "*.sql")
	if err != nil || len(names) < 6 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		b, err := fs.ReadFile(migrations.Embedded, name)
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(`^\d{4}_[a-z_]+\.(up|down)\.sql$`).MatchString(name) {
			t.Errorf("%s: want NNNN_name.up.sql or .down.sql", name)
		}
		if m := regexp.MustCompile(`[^\x00-\x7F]+`).Find(b); m != nil {
			t.Errorf("%s: %q: not every encoding of a database has it", name, m)
		}
		b = regexp.MustCompile(`--.*`).ReplaceAll(b, nil)
		for re, why := range map[string]string{
			`\$[a-zA-Z_]+\$`: "a body is quoted with $$ and nothing else",
			`(?im)^(begin|commit|rollback|start)\b.*;`: "a file is run inside a transaction", // what is further in is of a procedure
			`(?i)\b(e|u&)'`:           "no escapes: render does not know them",
			`(?i)''[^'\n]*\bpglock\b`: "no literal inside a literal: render does not know them",
			`(?i)(format|raise\s+\w+)\s*\(?\s*'[^']*\bpglock\b`: "a % in the schema's name would be a placeholder",
			`/\*`:                "comments begin with --: render does not know nested ones",
			`(?i)if not exists`:  "it needs CREATE even where there is nothing to do",
			`(?i)\bconcurrently`: "a file is run inside a transaction",
		} {
			if m := regexp.MustCompile(re).Find(b); m != nil {
				t.Errorf("%s: %q: %s", name, m, why)
			}
		}
	}
}

// odd are names that need quotes, or look like SQL, or have the library's own inside another word.
var odd = []string{
	`my "odd" schema's`, "100% %I.{a,b}(c)\\", "new\nline -- /* $a$", "Capitals", "mypglock", "pglock-x pglock y", "select", "public",
	"ü1234567890123456789012345678901234567890123456789012345678901",
}

// All names in the long mode, and the oddest otherwise.
func TestOddSchemaNamesWork(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	pool := db.Pool(t)
	role := db.Role(t)
	locker := poolAs(t, db.URLAs(role))
	for i, schema := range odd {
		if i > 3 && schema != "public" && !pgtest.Long() {
			continue
		}
		t.Run(schema, func(t *testing.T) {
			on := func(sql string) string { return migrations.Render(sql, schema) }

			mustUp(t, pool, migrations.Schema(schema))
			mustUp(t, pool, migrations.Schema(schema)) // finds it
			db.Exec(t, on(`SELECT pglock.grant_locker($1::text::regrole), pglock.grant_auditor($1::text::regrole)`), role)
			mustUp(t, locker, migrations.Schema(schema))
			token, err := acquire(t.Context(), locker, schema, "a")
			if err != nil {
				t.Fatal(err)
			}
			var verdict string
			err = locker.QueryRow(t.Context(), on(`SELECT verdict FROM pglock.fence_raise('r', 'a', 0, $1)`), token).Scan(&verdict)
			if err != nil || verdict != "raised" {
				t.Errorf("fence_raise: %q, %v", verdict, err)
			}
			err = locker.QueryRow(t.Context(), on(`SELECT pglock.once_start('job', 0, $1, true)`), token).Scan(&verdict)
			if err != nil || verdict != "elsewhere" {
				t.Errorf("once_start: %q, %v", verdict, err)
			}
			db.Exec(t, on(`SELECT * FROM pglock.once_records('job', 0), pglock.holder('a'); SELECT pglock.once_prune('0', 1)`))
			db.Exec(t, on(`CREATE TABLE notes (id int, text text); SELECT pglock.protect('notes', 'id')`))
			db.Exec(t, on(`BEGIN; SELECT pglock.fence_state('a', 0, `+fmt.Sprint(token)+`); INSERT INTO notes VALUES (1, 'x'); COMMIT`))
			if got := list(t, db, on(`SELECT problem FROM pglock.verify('notes')`)); len(got) != 0 {
				t.Errorf("verify: %q", got)
			}
			wantErr(t, migrations.Down(bounded(t), pool, migrations.Schema(schema)), nil, "tables are protected: public.notes", "unprotect")
			db.Exec(t, on(`SELECT pglock.unprotect('notes'), pglock.protect('notes'), pglock.unprotect('notes'); DROP TABLE notes`))
			db.Exec(t, on(`UPDATE pglock.guard SET started = 'epoch'`)) // what a restart does reaches the rest of the functions
			if _, err := acquire(t.Context(), locker, schema, "b"); err == nil || err.Error() != "held_back" {
				t.Errorf("after a restart: %v, want held_back", err)
			}
			db.Exec(t, on(`SELECT pglock.raise_token_floor(5), pglock.end_hold(), pglock.prune('0', 1); UPDATE pglock.leases SET expires_at = 'epoch'`))
			if err := migrations.Down(bounded(t), pool, migrations.Schema(schema)); err != nil {
				t.Fatal(err)
			}
			if n := objects(t, db); n != 0 {
				t.Errorf("%d objects are left", n)
			}
			if left := pgtest.Query[bool](t, db, "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema); left != (schema == "public") {
				t.Errorf("schema is left: %t", left)
			}
		})
	}
}

// objects counts what is in the database beside what every one has.
func objects(t *testing.T, db *pgtest.Database) int {
	t.Helper()
	const in = "NOT IN (SELECT oid FROM pg_namespace WHERE nspname LIKE 'pg\\_%' OR nspname = 'information_schema')"
	return pgtest.Query[int](t, db, `SELECT (SELECT count(*) FROM pg_class WHERE relnamespace `+in+`) + (SELECT count(*) FROM pg_proc WHERE pronamespace `+in+`)`)
}

func TestFSIsAFileSystem(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{"pglock", `a "b'`} {
		fsys, err := migrations.FS(schema)
		if err != nil {
			t.Fatal(err)
		}
		if err := fstest.TestFS(fsys, "0001_leases.up.sql", "0001_leases.down.sql", "0007_roles.up.sql"); err != nil {
			t.Error(err)
		}
	}
	if _, err := migrations.FS("pg_x"); err == nil {
		t.Error("FS(pg_x): no error")
	}
}

// The rendered files are applied one by one with psql if there is one, and then Up finds everything recorded.
func TestFilesRunByHand(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, db *pgtest.Database, schema, sql string) {
		t.Helper()
		psql, err := exec.LookPath("psql")
		if err != nil || schema == "public" && !pgtest.Long() {
			db.Exec(t, sql) // several statements without arguments: one transaction, as with psql -1
			return
		}
		cmd := exec.Command(psql, "-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-f", "-", db.URL)
		cmd.Stdin = strings.NewReader(sql)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("psql: %v\n%s", err, out)
		}
	}
	for _, schema := range []string{"pglock", "public", `a "b'`} {
		t.Run(schema, func(t *testing.T) {
			db := pgtest.Empty(t)
			pool := db.Pool(t)
			fsys, err := migrations.FS(schema)
			if err != nil {
				t.Fatal(err)
			}
			ups, _ := fs.Glob(fsys, "*.up.sql")
			for i, name := range ups {
				b, _ := fs.ReadFile(fsys, name)
				run(t, db, schema, string(b))
				st, err := migrations.Version(t.Context(), pool, migrations.Schema(schema))
				if err != nil || st.Version != uint(i+1) {
					t.Fatalf("after %s: Version = %+v, %v", name, st, err)
				}
			}
			mustUp(t, pool, migrations.Schema(schema))
			for i := len(ups) - 1; i >= 0; i-- {
				b, _ := fs.ReadFile(fsys, strings.Replace(ups[i], ".up.", ".down.", 1))
				run(t, db, schema, string(b))
			}
			if n := objects(t, db); n != 0 {
				t.Errorf("%d objects are left", n)
			}
			mustUp(t, pool, migrations.Schema(schema))
		})
	}
}

// As they stand in the source tree they record nothing; Up says what does.
func TestRawFilesRunByHandAreReported(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	ups, _ := fs.Glob(migrations.Embedded, "*.up.sql")
	for _, name := range ups {
		b, _ := fs.ReadFile(migrations.Embedded, name)
		db.Exec(t, string(b))
	}
	pool := db.Pool(t)
	err := migrations.Up(t.Context(), pool)
	wantErr(t, err, migrations.ErrUnrecorded, "INSERT INTO pglock.migrations")
	wantErr(t, migrations.Down(t.Context(), pool), migrations.ErrUnrecorded)
	_, verr := migrations.Version(t.Context(), pool)
	wantErr(t, verr, migrations.ErrUnrecorded)

	db.Exec(t, err.Error()[strings.Index(err.Error(), "INSERT INTO"):]) // as the message says
	mustUp(t, pool)
	db.Exec(t, "DELETE FROM pglock.migrations WHERE version = 2")
	err = migrations.Up(t.Context(), pool)
	wantErr(t, err, migrations.ErrUnrecorded, "0002_", fmt.Sprintf("of %s", strings.TrimSuffix(ups[2], ".up.sql")))
	db.Exec(t, err.Error()[strings.Index(err.Error(), "INSERT INTO"):])
	mustUp(t, pool)
}
