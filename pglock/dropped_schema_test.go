package pglock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// A look at a schema that is gone says so, and makes nothing in its place: on a new connection, and on one that has
// prepared its statements while the schema was there.
func TestLookingAtADroppedSchemaIsToldAndMakesNothing(t *testing.T) {
	t.Parallel()
	for what, look := range map[string]func(*testing.T, *pglock.Client) error{
		"Inspect": func(t *testing.T, c *pglock.Client) error { _, err := c.Inspect(soon(t), "a"); return err },
		"List":    func(t *testing.T, c *pglock.Client) error { _, err := c.List(soon(t)); return err },
		"Prune":   func(t *testing.T, c *pglock.Client) error { _, err := c.Prune(soon(t), time.Hour); return err },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			before, after := client(t, d), client(t, d)
			wantErr(t, what+" while the schema is there", look(t, before), nil)
			d.Exec(t, `DROP SCHEMA pglock CASCADE`)
			there := relations(t, d)
			for when, c := range map[string]*pglock.Client{"connected before": before, "connected after": after} {
				for range 2 { // the answer to the first must not heal the second
					err := look(t, c)
					wantErr(t, what+", "+when, err, pglock.ErrNotMigrated)
					if err == nil || !strings.Contains(err.Error(), "migrations.Up") {
						t.Errorf("%s, %s = %v, want the next step in it", what, when, err)
					}
				}
			}
			if now := relations(t, d); now != there {
				t.Errorf("relations, functions, schemas: %s before, %s after", there, now)
			}
		})
	}
}
