package migrations_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/migrations"
)

// The backend dies at the first schema change of an Up, at the second, and so on until one gets through. Each leaves an
// empty database behind, and the next one starts from there without anybody's help.
func TestAKilledUpLeavesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	db.Exec(t, `CREATE SCHEMA fault;
		CREATE FUNCTION fault.strike() RETURNS event_trigger LANGUAGE plpgsql AS $$
		DECLARE n int := current_setting('fault.fuse', true);
		BEGIN
			IF n = 0 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
			PERFORM set_config('fault.fuse', (n - 1)::text, false);
		END $$;
		CREATE EVENT TRIGGER fault ON ddl_command_end EXECUTE FUNCTION fault.strike()`)
	before := objects(t, db)
	stride := 60 / pgtest.Rounds(8, 60) // in the long mode each single change of the schema
	for fuse := 0; ; fuse += stride {
		pool := poolAs(t, db.URL, func(c *pgxpool.Config) {
			c.ConnConfig.RuntimeParams["fault.fuse"] = fmt.Sprint(fuse)
		})
		err := migrations.Up(bounded(t), pool)
		if err == nil {
			if fuse < 20 {
				t.Fatalf("Up survived after %d schema changes: the fault does not strike", fuse)
			}
			break
		}
		if sqlState(err) != "57P01" {
			t.Fatalf("fuse %d: %v", fuse, err)
		}
		if n := objects(t, db); n != before {
			t.Fatalf("fuse %d: %d objects are left", fuse, n-before)
		}
	}
	if _, err := acquire(t.Context(), db.Pool(t), "pglock", "a"); err != nil {
		t.Error(err)
	}
}

func TestAnUpThatFailsHalfwayLeavesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	db.Exec(t, `CREATE FUNCTION public.installation() RETURNS int LANGUAGE sql AS 'SELECT 1'`) // in the way of the last file
	before := objects(t, db)
	err := migrations.Up(bounded(t), db.Pool(t), migrations.Schema("public"))
	wantErr(t, err, nil, "0007_roles.up.sql", "installation")
	if got := sqlState(err); got != "42723" && got != "42P13" {
		t.Errorf("SQLSTATE %s: %v", got, err)
	}
	if n := objects(t, db); n != before {
		t.Errorf("%d objects are left", n-before)
	}
}

func TestAnOlderTextIsReported(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	pool := db.Pool(t)
	mustUp(t, pool)
	db.Exec(t, "UPDATE pglock.migrations SET sha256 = 'abc' WHERE version = 1")
	says := []string{"0001_leases", "abc", "DROP SCHEMA", "version that installed it"}
	wantErr(t, migrations.Up(t.Context(), pool), migrations.ErrChanged, says...)
	wantErr(t, migrations.Down(t.Context(), pool), migrations.ErrChanged, says...)
	st, err := migrations.Version(t.Context(), pool)
	wantErr(t, err, migrations.ErrChanged)
	if st.Version == 0 {
		t.Errorf("Version = %+v, want what is recorded", st)
	}
}

// In a schema that others live in, dropping it is no advice.
func TestAnOlderTextInASharedSchemaIsReported(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	db.Exec(t, "CREATE SCHEMA shared")
	pool := db.Pool(t)
	mustUp(t, pool, migrations.Schema("shared"))
	db.Exec(t, "UPDATE shared.migrations SET sha256 = 'abc' WHERE version = 1")
	err := migrations.Up(t.Context(), pool, migrations.Schema("shared"))
	wantErr(t, err, migrations.ErrChanged, "down files")
	if strings.Contains(err.Error(), "DROP SCHEMA") {
		t.Error(err)
	}
}

// During a rolling deploy a replica of the old version starts on the schema of the new one.
func TestANewerSchemaIsFineForUp(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	pool := db.Pool(t)
	mustUp(t, pool)
	db.Exec(t, "INSERT INTO pglock.migrations VALUES (9999, 'abc')")
	mustUp(t, pool)
	st, err := migrations.Version(t.Context(), pool)
	if err != nil || st.Version != 9999 || st.Latest >= st.Version {
		t.Errorf("Version = %+v, %v", st, err)
	}
	wantErr(t, migrations.Down(t.Context(), pool), nil, "9999", "newer")
	db.Exec(t, "DELETE FROM pglock.migrations WHERE version = 7")
	wantErr(t, migrations.Up(t.Context(), pool), migrations.ErrUnrecorded, "9999", "0007")
}

// What a later version of the library meets: some files are applied, the others are not.
func TestUpContinuesWhereItIs(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	pool := db.Pool(t)
	mustUp(t, pool, migrations.Cap(10*time.Second))
	down, err := migrations.FS("pglock")
	if err != nil {
		t.Fatal(err)
	}
	db.Exec(t, read(t, down, "0007_roles.down.sql"))
	token, err := acquire(t.Context(), pool, "pglock", "a")
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, migrations.Up(bounded(t), pool, migrations.Cap(20*time.Second)), migrations.ErrSettings)
	if n := pgtest.Query[int](t, db, "SELECT count(*) FROM pglock.migrations"); n != 6 {
		t.Errorf("%d files are recorded after an Up that was refused, want 6", n)
	}
	mustUp(t, pool, migrations.Cap(10*time.Second))
	if got := pgtest.Query[int64](t, db, "SELECT token FROM pglock.leases WHERE name = 'a'"); got != token {
		t.Errorf("the lease has token %d, had %d", got, token)
	}
}

func TestSomebodyElsesTableIsReported(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	db.Exec(t, "CREATE TABLE public.migrations (id int); CREATE TABLE public.schema_migrations (version bigint, dirty bool); INSERT INTO public.schema_migrations VALUES (7, true)")
	pool := db.Pool(t)
	for _, call := range []error{
		migrations.Up(t.Context(), pool, migrations.Schema("public")),
		migrations.Down(t.Context(), pool, migrations.Schema("public")),
	} {
		wantErr(t, call, nil, "choose another schema")
	}
	mustUp(t, pool) // the service's own schema_migrations is none of our business
	if !pgtest.Query[bool](t, db, "SELECT version = 7 AND dirty FROM public.schema_migrations") {
		t.Error("the service's version table has changed")
	}
}

func TestSettingsAreFixedAtInstallation(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	pool := db.Pool(t)
	guard := func() string {
		return pgtest.Query[string](t, db, "SELECT format('%s %s', cap_us, single_node) FROM pglock.guard")
	}
	mustUp(t, pool)
	if got := guard(); got != "30000000 f" {
		t.Errorf("by default: %s", got)
	}
	mustUp(t, pool, migrations.Cap(30*time.Second))
	err := migrations.Up(t.Context(), pool, migrations.Cap(20*time.Second), migrations.SingleNode())
	wantErr(t, err, migrations.ErrSettings, "30s", "20s", "cap_us = 20000000", "lower", "declare_single_node(true)")
	err = migrations.Up(t.Context(), pool, migrations.Cap(40*time.Second))
	wantErr(t, err, migrations.ErrSettings, "raise_cap(40000000)", "replay")
	if got := guard(); got != "30000000 f" {
		t.Errorf("after a refusal: %s", got)
	}

	for _, c := range []struct {
		want string
		opts []migrations.Option
	}{
		{"250000 f", []migrations.Option{migrations.Cap(250 * time.Millisecond)}},
		{"30000000 t", []migrations.Option{migrations.SingleNode()}},
		{"86400000000 t", []migrations.Option{migrations.Cap(24 * time.Hour), migrations.SingleNode()}},
	} {
		if err := migrations.Down(bounded(t), pool); err != nil {
			t.Fatal(err)
		}
		mustUp(t, pool, c.opts...)
		mustUp(t, pool, c.opts...)
		mustUp(t, pool)
		if got := guard(); got != c.want {
			t.Errorf("settings %s, want %s", got, c.want)
		}
	}
}
