package migrations_test

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/migrations"
)

// onDatabase runs a statement that names the database, %I.
func onDatabase(t *testing.T, db *pgtest.Database, sql string) {
	t.Helper()
	db.Exec(t, fmt.Sprintf(`DO $$ BEGIN EXECUTE format('%s', current_database()); END $$`, sql))
}

// A role that may not do what is left is told what it lacks, and the statement that the message offers is enough.
func TestMissingPrivilegesAreNamedWithTheWayOut(t *testing.T) {
	t.Parallel()
	const installed = `SELECT "[^"]*".grant_locker\('[^']*'\)`
	for _, c := range []struct {
		name, schema string
		prepare      string
		says         []string
		remedy       string // in the message
	}{
		{
			"no CREATE on the database", `odd "name"`, "",
			[]string{`schema "odd \"name\""`, "no CREATE on database"},
			`CREATE SCHEMA .* AUTHORIZATION "[^"]*"`,
		},
		{"no CREATE on the database, other way out", "x", "", []string{`schema "x"`}, `GRANT CREATE ON DATABASE "[^"]*" TO "[^"]*"`},
		{"public is closed", "public", "REVOKE CREATE ON SCHEMA public FROM PUBLIC", []string{`no CREATE on schema "public"`}, `GRANT USAGE, CREATE ON SCHEMA .* TO "[^"]*"`},
		{"somebody else's schema", "x", "CREATE SCHEMA x", []string{"no USAGE and no CREATE"}, `GRANT USAGE, CREATE ON SCHEMA .* TO "[^"]*"`},
		{"another role installs it", "x", "", []string{"let another role run migrations.Up"}, installed},
		{"the owner of the schema installs it", "x", "CREATE SCHEMA x", []string{"let its owner run migrations.Up"}, installed},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := pgtest.Empty(t)
			role := db.Role(t)
			if c.prepare != "" {
				db.Exec(t, c.prepare)
			}
			pool := poolAs(t, db.URLAs(role))
			err := migrations.Up(t.Context(), pool, migrations.Schema(c.schema))
			wantErr(t, err, migrations.ErrPrivilege, append(c.says, role)...)
			remedy := regexp.MustCompile(c.remedy).FindString(err.Error())
			if remedy == "" {
				t.Fatalf("no %s in %v", c.remedy, err)
			}
			if c.remedy == installed {
				mustUp(t, db.Pool(t), migrations.Schema(c.schema))
			}
			db.Exec(t, remedy)
			mustUp(t, pool, migrations.Schema(c.schema))
		})
	}
}

// A file that comes with an update changes tables, which only their owner may.
func TestOnlyTheOwnerUpdates(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	owner, other := db.Role(t), db.Role(t)
	onDatabase(t, db, "GRANT CREATE ON DATABASE %I TO "+owner)
	mustUp(t, poolAs(t, db.URLAs(owner)))
	fsys, err := migrations.FS("pglock")
	if err != nil {
		t.Fatal(err)
	}
	db.Exec(t, "SELECT pglock.grant_locker('"+other+"'); GRANT CREATE ON SCHEMA pglock TO "+other)
	db.Exec(t, read(t, fsys, "0007_roles.down.sql"))

	pool := poolAs(t, db.URLAs(other))
	wantErr(t, migrations.Up(t.Context(), pool), migrations.ErrPrivilege, owner, other)
	wantErr(t, migrations.Down(t.Context(), pool), migrations.ErrPrivilege, owner, other)
	mustUp(t, poolAs(t, db.URLAs(owner)))
	db.Exec(t, "SELECT pglock.grant_locker('"+other+"')")
	mustUp(t, pool)
}

func TestAStandbyIsNamed(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts two servers")
	}
	_, standby := pgtest.Standby(t)
	pool := standby.Pool(t)
	mustUp(t, pool) // what is up to date is only read
	if _, err := migrations.Version(t.Context(), pool); err != nil {
		t.Error(err)
	}
	wantErr(t, migrations.Up(t.Context(), pool, migrations.Schema("other")), migrations.ErrReadOnly, "standby", "primary")
	wantErr(t, migrations.Down(t.Context(), pool), migrations.ErrReadOnly, "standby", "primary")
}
