package pglock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// poison makes the server refuse to write the rows of one lock, when a condition holds.
func poison(t *testing.T, d *pgtest.Database, state, when string) {
	t.Helper()
	d.Exec(t, fmt.Sprintf(`CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF %s THEN RAISE EXCEPTION 'made up' USING ERRCODE = '%s'; END IF;
			RETURN NEW;
		END $$;
		CREATE TRIGGER fail BEFORE UPDATE ON pglock.leases FOR EACH ROW EXECUTE FUNCTION fail()`, when, state))
}

// Callers share a round trip, and one whose value the server refuses does not spoil it for the others.
func TestARefusedValueSpoilsOnlyItsOwnCall(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"22003", "22P02", "54000"} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			poison(t, d, state, `NEW.name = 'bad'`)
			c := client(t, d)
			var all sync.WaitGroup
			for i := range 40 {
				name := fmt.Sprint("good ", i)
				if i%10 == 9 {
					name = "bad"
				}
				all.Go(func() {
					l, err := c.TryAcquire(t.Context(), name)
					switch {
					case name == "bad":
						wantErr(t, "TryAcquire of the bad one", err, pglock.ErrInvalidOption)
					case err != nil:
						t.Errorf("TryAcquire(%q) = %v", name, err)
					default:
						wantErr(t, "Release", l.Release(t.Context()), nil)
					}
				})
			}
			all.Wait()
		})
	}
}

func TestARefusedReleaseSpoilsNoOther(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"22003", "54000", "P0001"} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			poison(t, d, state, `NEW.name IN ('bad 1', 'bad 2') AND NEW.expires_at = 'epoch'`)
			c := client(t, d)
			for _, name := range []string{"good 1", "bad 1", "good 2", "bad 2"} {
				take(t, c, name)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // an error that may pass is waited for
			defer cancel()
			wantErr(t, "Close", c.Close(ctx), pglock.ErrNotReleased) // all in one statement, at first
			if state != "P0001" && (holds(t, d, "good 1") || holds(t, d, "good 2")) {
				t.Error("a good one was not released")
			}
		})
	}
}
