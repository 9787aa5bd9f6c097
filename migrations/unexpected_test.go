package migrations_test

import (
	"errors"
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/migrations"
)

// An error that means nothing to the library, such as damaged data, is returned as it is: not taken for a missing schema
// or a missing right, and never answered with DDL.
func TestAnUnexpectedErrorOfTheRecordsIsReturnedAsItIs(t *testing.T) {
	t.Parallel()
	db := pgtest.DB(t)
	db.Exec(t, `
		ALTER TABLE pglock.migrations RENAME TO attic;
		CREATE FUNCTION pglock.fail() RETURNS SETOF pglock.attic LANGUAGE plpgsql AS $$
		BEGIN RAISE EXCEPTION 'made up' USING ERRCODE = 'XX001'; END $$;
		CREATE VIEW pglock.migrations AS SELECT * FROM pglock.fail()`)
	const all = `SELECT concat_ws(' ', (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_proc), (SELECT count(*) FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp_'),
		(SELECT string_agg(a::text, ' ' ORDER BY version) FROM pglock.attic a), (SELECT g::text FROM pglock.guard g))`
	before := pgtest.Query[string](t, db, all)
	pool := db.Pool(t)
	_, versionErr := migrations.Version(bounded(t), pool)
	for what, err := range map[string]error{
		"Up":      migrations.Up(bounded(t), pool),
		"Down":    migrations.Down(bounded(t), pool),
		"Version": versionErr,
	} {
		if sqlState(err) != "XX001" {
			t.Errorf("%s = %v, want the server's own error", what, err)
		}
		for _, ours := range []error{
			migrations.ErrInvalid, migrations.ErrNotInstalled, migrations.ErrChanged, migrations.ErrUnrecorded,
			migrations.ErrSettings, migrations.ErrPrivilege, migrations.ErrReadOnly, migrations.ErrInUse,
		} {
			if errors.Is(err, ours) {
				t.Errorf("%s = %v, which is not %v", what, err, ours)
			}
		}
	}
	if after := pgtest.Query[string](t, db, all); after != before {
		t.Errorf("changed from\n%s to\n%s", before, after)
	}
}
