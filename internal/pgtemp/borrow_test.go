package pgtemp_test

import (
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
)

func TestServerOfTheEnvironmentIsUsedAndLeft(t *testing.T) {
	lent := local(t, pgtemp.Options{})
	t.Setenv("PGLOCK_TEST_URL", lent.URL("whatever"))

	s, err := pgtemp.Start(t.Context(), pgtemp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if s.URL("postgres") != lent.URL("postgres") || s.How() != "PGLOCK_TEST_URL" {
		t.Errorf("URL %s (%s), want %s", s.URL("postgres"), s.How(), lent.URL("postgres"))
	}
	if err := s.Halt(t.Context(), pgtemp.Fast); err == nil {
		t.Error("Halt of somebody else's server: no error")
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := dial(t.Context(), lent.URL("postgres")); err != nil {
		t.Errorf("after Stop, somebody else's server is gone: %v", err)
	}

	fresh, err := pgtemp.Start(t.Context(), pgtemp.Options{Fresh: true})
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Stop()
	if fresh.URL("postgres") == lent.URL("postgres") {
		t.Error("Fresh: the server of the environment")
	}
}

func TestServerOfTheEnvironmentIsChecked(t *testing.T) {
	for _, bad := range []string{"host=localhost", "mysql://localhost/x", "postgres:///x", "://"} {
		t.Setenv("PGLOCK_TEST_URL", bad)
		if _, err := pgtemp.Start(t.Context(), pgtemp.Options{}); err == nil {
			t.Errorf("PGLOCK_TEST_URL=%s: no error", bad)
		}
	}
	t.Setenv("PGLOCK_TEST_URL", "postgres://localhost/x")
	if _, err := pgtemp.Start(t.Context(), pgtemp.Options{Settings: map[string]string{"work_mem": "1MB"}}); err == nil {
		t.Error("settings for somebody else's server: no error")
	}
}
