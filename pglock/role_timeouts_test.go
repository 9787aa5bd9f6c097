package pglock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/jackc/pgx/v5"
)

// slowRows makes every write of a lease row do something slow first. What began is counted even if it was rolled back, what was
// committed is noted.
func slowRows(t *testing.T, d *pgtest.Database, slow string) {
	t.Helper()
	d.Exec(t, fmt.Sprintf(`CREATE SEQUENCE begun; CREATE TABLE committed ();
		CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			PERFORM nextval('public.begun');
			INSERT INTO public.committed DEFAULT VALUES;
			PERFORM %s;
			RETURN NEW;
		END $$;
		CREATE TRIGGER slow BEFORE INSERT OR UPDATE ON pglock.leases FOR EACH ROW EXECUTE FUNCTION slow()`, slow))
}

// Timeouts of a role that are shorter than what a statement of the locks may take.
func TestTimeoutsOfTheRoleEndNoStatementOfTheLocks(t *testing.T) {
	t.Parallel()
	const gate = 5 // the key of an advisory lock
	for setting, test := range map[string]struct {
		slow  string // in every write
		state string // what the role's own statements end with
		gated bool   // each step of the lease waits for the gate
	}{
		`statement_timeout = '50ms'`: {slow: `pg_sleep(0.12)`, state: "57014"},
		`lock_timeout = '1ms'`:       {slow: fmt.Sprintf(`pg_advisory_xact_lock_shared(%d)`, gate), state: "55P03", gated: true},
	} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			slowRows(t, d, test.slow)
			role := d.Role(t)
			d.Exec(t, fmt.Sprintf(`SELECT pglock.grant_locker('%s')`, role))
			d.Exec(t, fmt.Sprintf(`ALTER ROLE %s IN DATABASE %s SET %s`, role, d.Name, setting))
			keeper := d.Conn(t)
			shut := func(sql string) {
				t.Helper()
				if _, err := keeper.Exec(t.Context(), sql, gate); err != nil {
					t.Fatal(err)
				}
			}
			// through has a step of the lease wait at the gate for a while.
			through := func() {
				t.Helper()
				if test.gated {
					d.WaitFor(t, pgtest.Waiting)
					was := pgtest.Query[time.Time](t, d, `SELECT clock_timestamp()`)
					d.WaitFor(t, `SELECT clock_timestamp() > $1::timestamptz + interval '100 ms'`, was)
				}
				shut(`SELECT pg_advisory_unlock($1)`)
			}

			shut(`SELECT pg_advisory_lock($1)`)
			conn, err := pgx.Connect(t.Context(), d.URLAs(role))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context())
			if _, err := conn.Exec(t.Context(), `SELECT `+test.slow); state(err) != test.state {
				t.Fatalf("the role's own statement = %v, want %s: the setting does not bite", err, test.state)
			}

			c := open(t, d.URLAs(role), pglock.Config{RenewEvery: 300 * time.Millisecond})
			waiting := acquiring(soon(t), c, "a")
			through()
			l := granted(t, waiting)
			for range 2 {
				shut(`SELECT pg_advisory_lock($1)`)
				through()
				renewedAgain(t, d, "a")
			}
			stillHeld(t, d, l)
			shut(`SELECT pg_advisory_lock($1)`)
			releasing := async(func() error { return l.Release(soon(t)) })
			through()
			wantErr(t, "Release", happens(t, "the release", releasing), nil)
			if holds(t, d, "a") {
				t.Error("held after the release")
			}
			const counts = `SELECT b.last_value - (SELECT count(*) FROM committed) FROM begun b`
			if again := pgtest.Query[int](t, d, counts); again != 0 {
				t.Errorf("%d writes were begun in vain: not every step succeeded at its first attempt", again)
			}
		})
	}
}
