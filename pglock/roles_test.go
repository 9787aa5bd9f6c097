package pglock_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// Settings of a role that are made for the queries of its service. None is any business of the locks.
var roleSettings = map[string][]string{
	"statement timeout":  {`statement_timeout = '50ms'`},
	"lock timeout":       {`lock_timeout = '1ms'`},
	"idle session":       {`idle_session_timeout = '100ms'`},
	"idle transaction":   {`idle_in_transaction_session_timeout = '1ms'`},
	"read only":          {`default_transaction_read_only = on`},
	"serializable":       {`default_transaction_isolation = serializable`},
	"commit is not safe": {`synchronous_commit = off`},
	"no plans":           {`plan_cache_mode = force_custom_plan`, `enable_indexscan = off`, `enable_bitmapscan = off`},
	"other formats":      {`datestyle = 'German'`, `timezone = 'Asia/Kathmandu'`, `intervalstyle = 'iso_8601'`},
	"search_path empty":  {`search_path = ''`},
	"search_path":        {`search_path = evil, pg_catalog, public`},
	"row security":       {`row_security = off`},
}

// hijack puts functions and relations with the names of PostgreSQL's own into a schema that search_path puts first.
const hijack = `CREATE SCHEMA evil;
	CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT timestamptz '2001-01-01' $$;
	CREATE FUNCTION evil.pg_backend_pid() RETURNS int LANGUAGE sql AS $$ SELECT 1/0 $$;
	CREATE FUNCTION evil.pg_terminate_backend(int, bigint) RETURNS boolean LANGUAGE sql AS $$ SELECT 1/0 = 1 $$;
	CREATE FUNCTION evil.pg_terminate_backend(int, int) RETURNS boolean LANGUAGE sql AS $$ SELECT 1/0 = 1 $$;
	CREATE FUNCTION evil.set_config(text, text, boolean) RETURNS text LANGUAGE sql AS $$ SELECT (1/0)::text $$;
	CREATE FUNCTION evil.current_setting(text) RETURNS text LANGUAGE sql AS $$ SELECT (1/0)::text $$;
	CREATE FUNCTION evil.hashtextextended(text, bigint) RETURNS bigint LANGUAGE sql AS $$ SELECT 7::bigint $$;
	CREATE FUNCTION evil.times(numeric, int) RETURNS numeric LANGUAGE sql AS $$ SELECT 1/0::numeric $$;
	CREATE OPERATOR evil.* (LEFTARG = numeric, RIGHTARG = int, FUNCTION = evil.times);
	CREATE FUNCTION evil.times(bigint, interval) RETURNS interval LANGUAGE sql AS $$ SELECT (1/0)::text::interval $$;
	CREATE OPERATOR evil.* (LEFTARG = bigint, RIGHTARG = interval, FUNCTION = evil.times);
	CREATE FUNCTION evil.same(int, int) RETURNS boolean LANGUAGE sql AS $$ SELECT 1/0 = 1 $$;
	CREATE OPERATOR evil.= (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.same);
	CREATE FUNCTION evil.same(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT 1/0 = 1 $$;
	CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.same);
	CREATE TABLE evil.pg_stat_activity (pid int, backend_start timestamptz);
	CREATE TABLE evil.leases (name text);
	GRANT USAGE ON SCHEMA evil TO PUBLIC; GRANT ALL ON ALL TABLES IN SCHEMA evil TO PUBLIC;`

// settingsOfRoles are all settings: each by itself in the long mode, and otherwise every second one together.
func settingsOfRoles() map[string][]string {
	if pgtest.Long() {
		return roleSettings
	}
	halves := map[string][]string{}
	for i, what := range slices.Sorted(maps.Keys(roleSettings)) {
		half := []string{"one half", "the other"}[i%2]
		halves[half] = append(halves[half], roleSettings[what]...)
	}
	return halves
}

func TestSettingsOfTheRoleCostNoLease(t *testing.T) {
	t.Parallel()
	for what, settings := range settingsOfRoles() {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			d.Exec(t, hijack)
			role := d.Role(t)
			d.Exec(t, fmt.Sprintf(`SELECT pglock.grant_locker('%[1]s'), pglock.grant_auditor('%[1]s')`, role))
			for _, s := range settings {
				d.Exec(t, fmt.Sprintf(`ALTER ROLE %s IN DATABASE %s SET %s`, role, d.Name, s))
			}
			p := pgtest.NewProxy(t, d)
			u := pgtest.Database{URL: p.URL()}
			c := open(t, u.URLAs(role), pglock.Config{RenewEvery: 300 * time.Millisecond})
			l, err := c.Acquire(soon(t), "a")
			if err != nil {
				t.Fatal(err)
			}
			renewedAgain(t, d, "a") // after a pause that is longer than the settings allow
			p.Cut()                 // a new connection, which ends the one before
			renewedAgain(t, d, "a")
			renewedAgain(t, d, "a")
			refused(t, client(t, d), "a")
			stillHeld(t, d, l)
			s, err := c.Inspect(soon(t), "a")
			if err != nil || !s.Held || s.Token != l.Token() {
				t.Errorf("Inspect = %+v, %v", s, err)
			}
			release(t, l)
			if holds(t, d, "a") {
				t.Error("held after the release")
			}
		})
	}
}
