package primary_test

import (
	"context"
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/internal/primary"
	"github.com/fencedlock/fencedlock/migrations"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/fencedlock/fencedlock/pglock/advisory"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// hosts is the URL of the first that names the others as well, with settings.
func hosts(t *testing.T, settings string, first *pgtest.Database, others ...string) string {
	t.Helper()
	u, err := url.Parse(first.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range others {
		o, err := url.Parse(other)
		if err != nil {
			t.Fatal(err)
		}
		u.Host += "," + o.Host
	}
	u.RawQuery += settings
	return u.String()
}

// A connection string that names a standby first leads to the primary all the same, by every way to connect; to a standby only where
// no host is the primary, or the string asks for one.
func TestThePrimaryIsFoundAmongSeveralHosts(t *testing.T) {
	t.Parallel()
	p, s := pgtest.Standby(t)
	const nobody = "postgres://127.0.0.1:1"
	for what, c := range map[string]struct {
		url     string
		standby bool
	}{
		"a standby first":             {hosts(t, "", s, p.URL), false},
		"nobody, then a standby":      {hosts(t, "", s, nobody, p.URL), false},
		"the primary first":           {hosts(t, "", p, s.URL), false},
		"no primary":                  {hosts(t, "", s, nobody), true},
		"one host":                    {s.URL, true},
		"whoever wants a standby":     {hosts(t, "&target_session_attrs=standby", p, s.URL), true},
		"whoever wants the primary":   {hosts(t, "&target_session_attrs=primary", s, p.URL), false},
		"whoever wants to read first": {hosts(t, "&target_session_attrs=prefer-standby", p, s.URL), true},
	} {
		cc, err := pgx.ParseConfig(c.url)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := primary.Connect(soon(t), cc)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		var standby bool
		if err := conn.QueryRow(soon(t), "SELECT pg_is_in_recovery()").Scan(&standby); err != nil || standby != c.standby {
			t.Errorf("%s: connected to a standby: %v (%v), want %v", what, standby, err, c.standby)
		}
		conn.Close(soon(t)) //nolint:errcheck // of the test
	}

	both := hosts(t, "", s, p.URL)
	locks, err := pglock.Open(both, pglock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close(soon(t)) //nolint:errcheck // of the test
	if _, err := locks.TryAcquire(soon(t), "a"); err != nil {
		t.Errorf("TryAcquire: %v", err)
	}
	if err := locks.EndHold(soon(t)); err != nil {
		t.Errorf("EndHold: %v", err)
	}
	session, err := advisory.Open(both, advisory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close(soon(t)) //nolint:errcheck // of the test
	if _, err := session.TryAcquire(soon(t), advisory.Name("a")); err != nil {
		t.Errorf("TryAcquire of a session lock: %v", err)
	}
	pool, err := pgxpool.New(soon(t), both)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := migrations.Up(soon(t), pool, migrations.Schema("another")); err != nil {
		t.Errorf("Up: %v", err)
	}

	none, err := pglock.Open(hosts(t, "", s, nobody), pglock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer none.Close(soon(t)) //nolint:errcheck // of the test
	if _, err := none.TryAcquire(soon(t), "a"); !errors.Is(err, pglock.ErrReadOnly) {
		t.Errorf("TryAcquire without a primary = %v, want ErrReadOnly", err)
	}
	if err := none.EndHold(soon(t)); !errors.Is(err, pglock.ErrReadOnly) {
		t.Errorf("EndHold without a primary = %v, want ErrReadOnly", err)
	}
}
