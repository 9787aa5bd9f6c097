package migrations_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/migrations"
)

// The verbs: what lockers may call. Those that run with the owner's rights, and no others.
var verbs = []string{
	"acquire", "renew", "release", "check_in", "installation", "exchange", "mark", "unmark", "holder", "once_start", "once_end", "once_records",
	"fence_behind", "fence_credible", "fence_raise", "fence_raise_all", "fence_check", "fence_whole", "fence_kept", "fence_row_lock", "fence_row_tombstone", "fence_row_bury", "fence_row_revive",
	"fence_state", "fence_begin_raised", "fence_begin_held", "fence_begin_stated",
}

// What protects tables: the triggers run with the owner's rights as well; what installs and looks runs with the caller's.
var (
	triggers = []string{"fence_table", "fence_rows", "fence_row_write"}
	looks    = []string{"verify", "protection", "fence_tree", "fence_root", "fence_row_body", "fence_key_columns"}
	installs = []string{"protect", "unprotect", "fence_install", "fence_make_rows", "fence_drop_rows", "fence_trigger"}
)

// list is a query's only column.
func list(t *testing.T, db *pgtest.Database, sql string, args ...any) []string {
	t.Helper()
	return pgtest.Query[[]string](t, db, "SELECT coalesce(array_agg(x ORDER BY x), '{}') FROM ("+sql+") q(x)", args...)
}

// grants are all rights on the schema and on what is in it, with the defaults spelled out, that are not the owner's.
const grants = `
	SELECT format('%s on %s to %s', a.privilege_type, x.what, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
	FROM (SELECT c.oid::regclass::text, coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", c.relowner)), c.relowner
	        FROM pg_class c WHERE c.relnamespace = 'pglock'::regnamespace AND c.relkind IN ('r', 'v', 'S')
	      UNION ALL SELECT p.proname, coalesce(p.proacl, acldefault('f', p.proowner)), p.proowner
	        FROM pg_proc p WHERE p.pronamespace = 'pglock'::regnamespace
	      UNION ALL SELECT a.attrelid::regclass || '.' || a.attname, a.attacl, c.relowner
	        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid WHERE c.relnamespace = 'pglock'::regnamespace
	      UNION ALL SELECT 'schema', nspacl, nspowner FROM pg_namespace WHERE nspname = 'pglock') x(what, acl, owner),
	     aclexplode(x.acl) a
	WHERE a.grantee <> x.owner`

func TestNothingIsGrantedToAnybody(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	mustUp(t, db.Pool(t))
	if got := list(t, db, grants); len(got) != 0 {
		t.Errorf("granted: %q", got)
	}
}

// ALTER DEFAULT PRIVILEGES, which many use for a read-only role, must not show it the acquisition ids.
func TestDefaultPrivilegesGrantNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	reader := db.Role(t)
	for _, what := range []string{"TABLES", "SEQUENCES", "FUNCTIONS"} {
		db.Exec(t, fmt.Sprintf("ALTER DEFAULT PRIVILEGES GRANT ALL ON %s TO PUBLIC; ALTER DEFAULT PRIVILEGES GRANT ALL ON %[1]s TO %s WITH GRANT OPTION", what, reader))
	}
	mustUp(t, db.Pool(t))
	if got := list(t, db, grants); len(got) != 0 {
		t.Errorf("granted: %q", got)
	}
}

func TestTheVerbsRunWithTheOwnersRightsAndAPinnedSearchPath(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	mustUp(t, db.Pool(t))
	definers := list(t, db, `SELECT proname::text FROM pg_proc WHERE pronamespace = 'pglock'::regnamespace AND prosecdef`)
	if want := slices.Sorted(slices.Values(slices.Concat(verbs, triggers))); !slices.Equal(definers, want) {
		t.Errorf("SECURITY DEFINER: %q, want %q", definers, want)
	}
	open := list(t, db, `SELECT proname::text FROM pg_proc WHERE pronamespace = 'pglock'::regnamespace AND prosecdef
		AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (proconfig), false)`)
	if len(open) != 0 {
		t.Errorf("search_path is not pinned: %q", open)
	}
}

// A thing is one statement that a role may or may not run.
type thing struct{ name, sql string }

// things are all statements that could touch what is in the schema.
func things(t *testing.T, db *pgtest.Database) []thing {
	t.Helper()
	all := []thing{
		{"create table", "CREATE TABLE pglock.mine ()"},
		{"create function", "CREATE FUNCTION pglock.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'"},
		{"alter schema", "ALTER SCHEMA pglock RENAME TO mine"},
		{"drop schema", "DROP SCHEMA pglock CASCADE"},
	}
	const relations = `SELECT relname::text FROM pg_class WHERE relnamespace = 'pglock'::regnamespace AND relkind `
	for _, rel := range list(t, db, relations+"IN ('r', 'v')") {
		for _, col := range list(t, db, `SELECT attname::text FROM pg_attribute WHERE attrelid = ('pglock.' || $1)::regclass AND attnum > 0`, rel) {
			all = append(all, thing{"select " + rel, fmt.Sprintf("SELECT %s FROM pglock.%s", col, rel)})
		}
		for _, col := range list(t, db, `SELECT attname::text FROM pg_attribute WHERE attrelid = ('pglock.' || $1)::regclass AND attnum > 0
			AND pg_column_is_updatable(attrelid, attnum, false)`, rel) {
			all = append(all, thing{"update " + rel, fmt.Sprintf("UPDATE pglock.%s SET %s = NULL", rel, col)})
		}
		for name, sql := range map[string]string{
			"count": "SELECT FROM pglock.%s", "copy": "COPY (SELECT * FROM pglock.%s) TO STDOUT",
			"for update": "SELECT FROM pglock.%s FOR UPDATE", "for key share": "SELECT FROM pglock.%s FOR KEY SHARE",
			"lock": "LOCK TABLE pglock.%s IN ACCESS EXCLUSIVE MODE", "alter": "ALTER TABLE pglock.%s RENAME TO mine",
			"rule": "CREATE RULE x AS ON UPDATE TO pglock.%s DO INSTEAD NOTHING", "grant": "GRANT ALL ON pglock.%s TO CURRENT_USER",
		} {
			all = append(all, thing{name + " " + rel, fmt.Sprintf(sql, rel)})
		}
	}
	for _, rel := range append(list(t, db, relations+"= 'r'"), "inspect", "once") {
		all = append(all, thing{"delete " + rel, "DELETE FROM pglock." + rel})
	}
	for _, rel := range list(t, db, relations+"= 'r'") {
		for name, sql := range map[string]string{
			"insert": "INSERT INTO pglock.%s DEFAULT VALUES", "truncate": "TRUNCATE pglock.%s CASCADE", "drop": "DROP TABLE pglock.%s CASCADE",
			"index": "CREATE INDEX ON pglock.%s ((1))", "references": "CREATE TABLE mine (c int REFERENCES pglock.%s)",
			"trigger": "CREATE TRIGGER x BEFORE UPDATE ON pglock.%s FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
			"comment": "COMMENT ON TABLE pglock.%s IS ''",
		} {
			all = append(all, thing{name + " " + rel, fmt.Sprintf(sql, rel)})
		}
	}
	for _, sql := range []string{
		"SELECT nextval('pglock.fencing_token')", "SELECT setval('pglock.fencing_token', 1)", "SELECT currval('pglock.fencing_token')",
		"SELECT last_value FROM pglock.fencing_token", "ALTER SEQUENCE pglock.fencing_token RESTART", "DROP SEQUENCE pglock.fencing_token CASCADE",
		"ALTER SEQUENCE pglock.fencing_token CYCLE", "GRANT ALL ON SEQUENCE pglock.fencing_token TO CURRENT_USER",
	} {
		all = append(all, thing{"sequence", sql})
	}
	for _, f := range list(t, db, `SELECT CASE prokind WHEN 'p' THEN 'CALL ' ELSE 'SELECT ' END || proname || ' ' || pronargs FROM pg_proc WHERE pronamespace = 'pglock'::regnamespace`) {
		var verb, name string
		var args int
		if _, err := fmt.Sscan(f, &verb, &name, &args); err != nil {
			t.Fatal(err)
		}
		nulls := strings.TrimSuffix(strings.Repeat("NULL, ", args), ", ")
		if strings.HasPrefix(name, "fence_row") {
			nulls = strings.Replace(nulls, "NULL, NULL", "NULL, ROW(1)", 1)
		}
		all = append(
			all, thing{"call " + name, fmt.Sprintf("%s pglock.%s(%s)", verb, name, nulls)},
			thing{"alter " + name, fmt.Sprintf("ALTER ROUTINE pglock.%s SECURITY INVOKER", name)},
			thing{"drop " + name, fmt.Sprintf("DROP ROUTINE pglock.%s CASCADE", name)},
			thing{"grant " + name, fmt.Sprintf("GRANT EXECUTE ON ROUTINE pglock.%s TO PUBLIC", name)},
		)
	}
	return all
}

// Everybody may do what the part allows, and gets 42501 for every other statement on every other object.
func TestEveryPartCanDoItsPartAndNothingElse(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	mustUp(t, db.Pool(t))
	locker, protector, auditor, stranger := db.Role(t), db.Role(t), db.Role(t), db.Role(t)
	db.Exec(t, `SELECT pglock.grant_locker($1::text::regrole), pglock.grant_protector($2::text::regrole), pglock.grant_auditor($3::text::regrole)`,
		locker, protector, auditor)
	for _, role := range []string{locker, protector, auditor, stranger} {
		db.Exec(t, "CREATE SCHEMA AUTHORIZATION "+role) // in its search_path by default
	}
	read := func(rels ...string) (may []string) {
		for _, r := range rels {
			may = append(may, "select "+r, "count "+r, "copy "+r)
		}
		return may
	}
	call := func(functions ...[]string) (may []string) {
		for _, f := range slices.Concat(functions...) {
			may = append(may, "call "+f)
		}
		return may
	}
	all := things(t, db)
	if len(all) < 200 {
		t.Fatalf("only %d statements", len(all))
	}
	for _, c := range []struct {
		role string
		may  []string
	}{
		{locker, append(read("migrations"), call(verbs, looks)...)},
		{protector, call(triggers, looks, installs)},
		{auditor, append(read("migrations", "inspect", "once"), call([]string{"installation", "holder"}, looks)...)},
		{stranger, nil},
	} {
		conn, err := pgx.Connect(t.Context(), db.URLAs(c.role))
		if err != nil {
			t.Fatal(err)
		}
		for _, th := range all {
			_, err := conn.Exec(t.Context(), "BEGIN; "+th.sql+"; ROLLBACK")
			// Nobody can write to the view inspect (55000), or have a permanent table refer to one that is not logged (42P16).
			refused := slices.Contains([]string{"42501", "55000", "42P16"}, sqlState(err))
			// GRANT by somebody who may read the object, but not pass that on, is only a warning.
			if strings.HasPrefix(th.name, "grant ") && err == nil {
				continue
			}
			if may := slices.Contains(c.may, th.name); refused == may {
				t.Errorf("%s: %s: %v", c.role, th.sql, err)
			}
			if err != nil {
				if _, err := conn.Exec(t.Context(), "ROLLBACK"); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	want := []string{
		"USAGE on schema to " + locker, "USAGE on schema to " + protector, "SELECT on pglock.migrations to " + locker, "USAGE on schema to " + auditor,
		"SELECT on pglock.migrations to " + auditor, "SELECT on pglock.inspect to " + auditor, "SELECT on pglock.once to " + auditor,
		"EXECUTE on installation to " + auditor, "EXECUTE on holder to " + auditor,
	}
	for role, functions := range map[string][]string{
		locker: slices.Concat(verbs, looks), protector: slices.Concat(triggers, looks, installs), auditor: looks,
	} {
		for _, f := range functions {
			want = append(want, "EXECUTE on "+f+" to "+role)
		}
	}
	got := list(t, db, grants)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("granted:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestAHijackedSessionChangesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	mustUp(t, db.Pool(t))
	locker := db.Role(t)
	db.Exec(t, "SELECT pglock.grant_locker('"+locker+"'); CREATE SCHEMA mine AUTHORIZATION "+locker)
	onDatabase(t, db, "GRANT TEMP ON DATABASE %I TO "+locker)
	if _, err := acquire(t.Context(), db.Pool(t), "pglock", "a"); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), db.URLAs(locker))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	var sql strings.Builder
	for _, f := range []string{
		"clock_timestamp() RETURNS timestamptz", "nextval(regclass) RETURNS bigint", "setval(regclass, bigint) RETURNS bigint", "cardinality(anyarray) RETURNS int",
		"pg_postmaster_start_time() RETURNS timestamptz", "set_config(text, text, boolean) RETURNS text", "octet_length(text) RETURNS int",
		"hashtextextended(text, bigint) RETURNS bigint", "current_setting(text) RETURNS text", "pg_sequence_last_value(regclass) RETURNS bigint",
		"later(timestamptz, timestamptz) RETURNS boolean",
	} {
		for _, schema := range []string{"mine", "pg_temp"} {
			fmt.Fprintf(&sql, "CREATE FUNCTION %s.%s LANGUAGE plpgsql AS $$ BEGIN RAISE 'hijacked'; END $$;\n", schema, f)
		}
	}
	for _, op := range []string{"<=", ">", "="} {
		fmt.Fprintf(&sql, "CREATE OPERATOR mine.%s (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = mine.later);\n", op)
	}
	sql.WriteString("CREATE TEMP TABLE leases (name text); CREATE TEMP TABLE guard (cap_us bigint); CREATE TEMP TABLE pg_class (x int);\n" +
		"SET search_path = pg_temp, mine, pg_catalog, pglock;")
	if _, err := conn.Exec(t.Context(), sql.String()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ sql, want string }{
		{"SELECT string_agg(status, ' ') FROM pglock.acquire(ARRAY['a', 'b'], ARRAY[gen_random_uuid(), '7c1c2b54-5c1f-4a52-8a33-6f1b7a5c0001'], 'x', ARRAY[5000000, 5000000])", "held granted"},
		{"SELECT status FROM pglock.renew(ARRAY['b'], ARRAY['7c1c2b54-5c1f-4a52-8a33-6f1b7a5c0001'::uuid], ARRAY[1::bigint])", "taken"},
		{"SELECT status FROM pglock.release(ARRAY['b'], ARRAY['7c1c2b54-5c1f-4a52-8a33-6f1b7a5c0001'::uuid])", "released"},
		{"SELECT hold_us::text FROM pglock.check_in(0)", "0"},
		{"SELECT concat_ws(' ', held, owner) FROM pglock.holder('a')", "t test"},
		{"SELECT pglock.once_start('job', 0, 1, true)", "elsewhere"},
		{"SELECT verdict FROM pglock.once_end('job', 0, 1, 'done', '')", "gone"},
		{"SELECT count(*)::text FROM pglock.once_records('job')", "0"},
		{"SELECT verdict FROM pglock.fence_raise('r', 'a', 0, 9007199254740991)", "never_granted"},
		{"SELECT pglock.fence_credible('a', 0, 9007199254740991)::text", "false"},
		{"SELECT cap_us::text FROM pglock.installation()", "30000000"},
	} {
		var got string
		if err := conn.QueryRow(t.Context(), c.sql, pgx.QueryExecModeSimpleProtocol).Scan(&got); err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", c.sql, got, err, c.want)
		}
	}
}

func TestAnAuditorNeverSeesAnAcquisition(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	mustUp(t, db.Pool(t))
	auditor := db.Role(t)
	db.Exec(t, "SELECT pglock.grant_auditor('"+auditor+"')")
	if _, err := acquire(t.Context(), db.Pool(t), "pglock", "a"); err != nil {
		t.Fatal(err)
	}
	id := pgtest.Query[string](t, db, "SELECT acquisition::text FROM pglock.leases")
	var row string
	if err := poolAs(t, db.URLAs(auditor)).QueryRow(t.Context(), "SELECT i::text FROM pglock.inspect i").Scan(&row); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(row, "(a,0,t,test,") || strings.Contains(row, id) {
		t.Errorf("inspect shows %s", row)
	}
}

func TestTheOwnerHandsOutTheParts(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	owner, other := db.Role(t), db.Role(t)
	odd := pgx.Identifier{other + ` "odd" role's`}.Sanitize()
	db.Exec(t, "CREATE ROLE "+odd)
	t.Cleanup(func() { db.Exec(t, "DROP OWNED BY "+odd+"; DROP ROLE "+odd) })
	onDatabase(t, db, "GRANT CREATE ON DATABASE %I TO "+owner)
	pool := poolAs(t, db.URLAs(owner))
	mustUp(t, pool)
	for _, f := range []string{"grant_locker", "grant_protector", "grant_auditor"} {
		if _, err := pool.Exec(t.Context(), "SELECT pglock."+f+"('"+strings.ReplaceAll(odd, "'", "''")+"')"); err != nil {
			t.Errorf("%s: %v", f, err)
		}
		for _, bad := range []string{"NULL", "0::oid::regrole", "'no such role'"} {
			if _, err := pool.Exec(t.Context(), "SELECT pglock."+f+"("+bad+")"); err == nil {
				t.Errorf("%s(%s): no error", f, bad)
			}
		}
	}

	// Where the schema is another's, its USAGE is not the owner's of the tables to give, and GRANT would only warn.
	db.Exec(t, "CREATE SCHEMA theirs; GRANT USAGE, CREATE ON SCHEMA theirs TO "+owner)
	mustUp(t, pool, migrations.Schema("theirs"))
	_, err := pool.Exec(t.Context(), "SELECT theirs.grant_locker('"+other+"')")
	wantErr(t, err, nil, other, owner)
	db.Exec(t, "GRANT USAGE ON SCHEMA theirs TO "+other)
	if _, err := pool.Exec(t.Context(), "SELECT theirs.grant_locker('"+other+"')"); err != nil {
		t.Error(err)
	}
	mustUp(t, poolAs(t, db.URLAs(other)), migrations.Schema("theirs"))
}
