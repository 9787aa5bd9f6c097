package migrations_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/migrations"
)

// What people call by hand says in psql what it does: those that the README has, and what messages and documentation send them to.
func TestWhatPeopleCallIsDescribed(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"unprotect", "verify", "raise_token_floor", "raise_cap", "declare_single_node", "installation"}
	for _, call := range regexp.MustCompile(`pglock\.([a-z_]+)\(`).FindAllStringSubmatch(string(readme), -1) {
		names = append(names, call[1])
	}
	db := pgtest.Empty(t)
	mustUp(t, db.Pool(t))
	mustUp(t, db.Pool(t), migrations.Schema("other"))
	for _, name := range names {
		for _, schema := range []string{"pglock", "other"} {
			said := pgtest.Query[string](t, db, `SELECT coalesce(string_agg(obj_description(p.oid, 'pg_proc'), ''), '') FROM pg_proc p
				WHERE p.pronamespace = $1::regnamespace AND p.proname = $2`, schema, name)
			if said == "" || len(said) > 125 || strings.Contains(said, "\n") {
				t.Errorf("%s.%s is described as %q, want a line", schema, name, said)
			}
		}
	}
}
