package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/migrations"
	"github.com/fencedlock/fencedlock/pglock"
)

// atOnce checks that neither a try nor a wait goes on after an error that waiting does not cure.
func atOnce(t *testing.T, c *pglock.Client, check func(what string, err error)) {
	t.Helper()
	_, err := c.TryAcquire(soon(t), "a")
	check("TryAcquire", err)
	waiting := acquiring(t.Context(), c, "a") // for ever, if it waits
	check("Acquire", happens(t, "Acquire returns at once", waiting).err)
	check("Do", c.Do(soon(t), "a", func(context.Context, *pglock.Lease) error { t.Error("it ran"); return nil }))
}

// Nothing is ever made where something is missing: the answer to an unexpected error is never DDL.
func relations(t *testing.T, d *pgtest.Database) string {
	t.Helper()
	return pgtest.Query[string](t, d, `SELECT (SELECT count(*) FROM pg_class) || ' ' || (SELECT count(*) FROM pg_proc) || ' ' || (SELECT count(*) FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp_')`)
}

func TestAMissingSchemaIsToldAtOnceAndNotMade(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	for _, c := range []struct{ what, sql, undo string }{
		{"no function", `ALTER FUNCTION pglock.acquire RENAME TO attic`, `ALTER FUNCTION pglock.attic RENAME TO acquire`},
		{"no check-in", `ALTER FUNCTION pglock.check_in RENAME TO attic`, `ALTER FUNCTION pglock.attic RENAME TO check_in`},
		{"no table", `ALTER TABLE pglock.leases RENAME TO attic`, `ALTER TABLE pglock.attic RENAME TO leases`},
		{"no sequence", `ALTER SEQUENCE pglock.fencing_token RENAME TO attic`, `ALTER SEQUENCE pglock.attic RENAME TO fencing_token`},
		{
			"column renamed", `ALTER TABLE pglock.leases RENAME COLUMN not_before TO attic`,
			`ALTER TABLE pglock.leases RENAME COLUMN attic TO not_before`,
		},
		{
			"guard lost", `CREATE TABLE attic AS TABLE pglock.guard; DELETE FROM pglock.guard`,
			`INSERT INTO pglock.guard TABLE attic`,
		},
		{"of another schema", `ALTER SCHEMA pglock RENAME TO other`, `ALTER SCHEMA other RENAME TO pglock`},
		{"never migrated", `DROP SCHEMA pglock CASCADE`, ``},
	} {
		t.Run(c.what, func(t *testing.T) {
			d.Exec(t, c.sql)
			before := relations(t, d)
			atOnce(t, client(t, d), func(how string, err error) {
				wantErr(t, how, err, pglock.ErrNotMigrated)
				if err == nil || !strings.Contains(err.Error(), "migrations.Up") {
					t.Errorf("%s = %v, want the next step in it", how, err)
				}
			})
			if after := relations(t, d); after != before {
				t.Errorf("relations, functions, schemas: %s before, %s after", before, after)
			}
			d.Exec(t, c.undo)
		})
	}
}

func TestAMissingPrivilegeIsToldAtOnceWithTheGrant(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	nobody, locker := d.Role(t), d.Role(t)
	d.Exec(t, fmt.Sprintf(`SELECT pglock.grant_locker('%s')`, locker))
	before := relations(t, d)
	notAllowed := func(how string, err error, says string) {
		t.Helper()
		wantErr(t, how, err, pglock.ErrNotAllowed)
		if err == nil || !strings.HasPrefix(err.Error(), says) {
			t.Errorf("%s = %v, want %s", how, err, says)
		}
	}
	atOnce(t, open(t, d.URLAs(nobody), pglock.Config{}), func(how string, err error) {
		notAllowed(how, err, `pglock: lock "a": permission denied: as the owner of the schema: SELECT "pglock".grant_locker('the_role') (`)
	})
	c := open(t, d.URLAs(locker), pglock.Config{})
	release(t, take(t, c, "a"))
	_, err := c.Inspect(soon(t), "a")
	const auditor, owner = `permission denied: as the owner of the schema: SELECT "pglock".grant_auditor('the_role') (`, `permission denied: only the owner of schema "pglock" may (`
	notAllowed("Inspect by a locker", err, `pglock: inspect lock "a": `+auditor)
	_, err = c.List(soon(t))
	notAllowed("List by a locker", err, `pglock: list the locks: `+auditor)
	_, err = c.Prune(soon(t), time.Hour)
	notAllowed("Prune by a locker", err, `pglock: prune: `+owner)
	_, err = c.Revoke(soon(t), "a", 0)
	notAllowed("Revoke by a locker", err, `pglock: revoke lock "a": `+owner)
	notAllowed("EndHold by a locker", c.EndHold(soon(t)), `pglock: end the hold: `+owner)
	notAllowed("RaiseCap by a locker", c.RaiseCap(soon(t), time.Minute), `pglock: raise the cap to 1m0s: `+owner)
	notAllowed("DeclareSingleNode by a locker", c.DeclareSingleNode(soon(t), true), `pglock: declare a single node: `+owner)
	notAllowed("RaiseTokenFloor by a locker", c.RaiseTokenFloor(soon(t), 1), `pglock: raise the token floor: `+owner)
	e, err := pglock.NewElector(open(t, d.URLAs(nobody), pglock.Config{}), "a", pglock.ElectorConfig{})
	wantErr(t, "NewElector", err, nil)
	_, err = e.Leader(soon(t))
	notAllowed("Leader by nobody", err, `pglock: leader of election "a": permission denied: as the owner of the schema: SELECT "pglock".grant_locker(`)
	if after := relations(t, d); after != before {
		t.Errorf("relations, functions, schemas: %s before, %s after", before, after)
	}
}

func TestAnUnexpectedErrorIsReturnedAsItIs(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, `CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'made up' USING ERRCODE = 'XX001'; END $$;
		CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON pglock.leases FOR EACH ROW EXECUTE FUNCTION fail()`)
	before := relations(t, d)
	_, err := client(t, d).TryAcquire(soon(t), "a")
	if state(err) != "XX001" || !strings.Contains(err.Error(), "made up") {
		t.Errorf("TryAcquire = %v, want the server's own error", err)
	}
	for _, ours := range []error{pglock.ErrNotMigrated, pglock.ErrNotAllowed, pglock.ErrHeld, pglock.ErrInvalidOption, pglock.ErrReadOnly} {
		if errors.Is(err, ours) {
			t.Errorf("TryAcquire = %v, which is not %v", err, ours)
		}
	}
	if after := relations(t, d); after != before {
		t.Errorf("relations, functions, schemas: %s before, %s after", before, after)
	}
}

func TestAMissingDatabaseIsToldAtOnce(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	atOnce(t, open(t, d.Server.URL("no_such_database"), pglock.Config{}), func(how string, err error) {
		if state(err) != "3D000" {
			t.Errorf("%s = %v, want 3D000", how, err)
		}
	})
}

func TestAWrongPasswordOrRoleIsToldAtOnce(t *testing.T) {
	t.Parallel()
	_, d := pgtest.OwnServer(t, pgtemp.Options{})
	d.Exec(t, `CREATE ROLE guarded LOGIN PASSWORD 'right';
		DO $$ BEGIN EXECUTE format('COPY (SELECT unnest(ARRAY[''host all guarded all scram-sha-256'', ''host all all all trust''])) TO %L', current_setting('hba_file')); END $$;
		SELECT pg_reload_conf()`)
	d.WaitFor(t, `SELECT count(*) = 2 FROM pg_hba_file_rules`)
	for what, url := range map[string]string{
		"wrong password": strings.Replace(d.URLAs("guarded"), "guarded@", "guarded:wrong@", 1),
		"no such role":   d.URLAs("nobody_here"),
	} {
		atOnce(t, open(t, url, pglock.Config{}), func(how string, err error) {
			if !strings.HasPrefix(state(err), "28") {
				t.Errorf("%s: %s = %v, want class 28", what, how, err)
			}
		})
	}
}

// Tokens that have run out do not come back by waiting. They keep nobody from releasing, though the release would have passed the
// lock on in the same round trip.
func TestTokensThatHaveRunOutAreToldAtOnce(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := client(t, d)
	l := take(t, c, "held")
	waiting := acquiring(t.Context(), c, "held")
	queued(t, c, "held", 1)
	d.Exec(t, `SELECT setval('pglock.fencing_token', 9007199254740991)`)
	check := func(how string, err error) {
		t.Helper()
		if state(err) != "2200H" || errors.Is(err, pglock.ErrInvalidOption) || !strings.Contains(err.Error(), `"pglock".fencing_token`) || !strings.Contains(err.Error(), "migrations.Down") {
			t.Errorf("%s = %v, want 2200H and the next step", how, err)
		}
	}
	atOnce(t, c, func(how string, err error) {
		if check(how, err); err == nil || !strings.Contains(err.Error(), `lock "a"`) {
			t.Errorf("%s = %v, want the lock's name", how, err)
		}
	})
	refused(t, c, "held")
	release(t, l)
	check("Acquire that waited", happens(t, "Acquire returns at once", waiting).err)
	if holds(t, d, "held") {
		t.Error("it was not released")
	}
	wantErr(t, "Close", c.Close(soon(t)), nil) // the way out, as the message has it
	d.Exec(t, `SELECT setval('pglock.fencing_token', (SELECT max(token) FROM pglock.leases))`)
	if next := take(t, client(t, d), "held"); next.Token() <= l.Token() {
		t.Errorf("token %d after %d", next.Token(), l.Token())
	}
}

// A release that would grant the lock to another process releases it all the same: that one is told when it asks.
func TestTokensThatHaveRunOutKeepNobodyFromReleasingToAnotherProcess(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	l := take(t, client(t, d), "a", pglock.TTL(30*time.Second))
	c, _, _ := heir(t, d)
	waiting := acquiring(soon(t), c, "a")
	waits(t, d, 1)
	d.Exec(t, `SELECT setval('pglock.fencing_token', 9007199254740991)`)
	release(t, l)
	if holds(t, d, "a") {
		t.Error("it was not released")
	}
	if err := happens(t, "Acquire returns", waiting).err; state(err) != "2200H" {
		t.Errorf("Acquire = %v, want 2200H", err)
	}
}

// All names in the long mode.
func TestASchemaOfAnyNameWorks(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	pool, other := d.Pool(t), client(t, d)
	schemas := []string{"public", `qu"ote`, "a.b", strings.Repeat("s", 63), "$1"}
	if pgtest.Long() {
		schemas = append(schemas, "Odd Name", "pglock.x", "select", "é", "100%")
	}
	for _, schema := range schemas {
		t.Run(schema, func(t *testing.T) {
			if err := migrations.Up(soon(t), pool, migrations.Schema(schema), migrations.Cap(time.Minute)); err != nil {
				t.Fatal(err)
			}
			c := open(t, d.URL, pglock.Config{Schema: schema})
			l := take(t, c, "a", pglock.TTL(time.Minute))
			refused(t, c, "a")
			release(t, take(t, other, "a")) // of another service
			wantErr(t, "Renew", l.Renew(soon(t)), nil)
			if s, err := c.Inspect(soon(t), "a"); err != nil || !s.Held || s.Token != l.Token() {
				t.Errorf("Inspect = %+v, %v", s, err)
			}
			release(t, l)
			if _, err := c.Prune(soon(t), time.Hour); err != nil {
				t.Errorf("Prune: %v", err)
			}
		})
	}
}
