package pgtemp_test

import (
	"os"
	"strings"
	"testing"

	"github.com/testcontainers/testcontainers-go"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
)

// A machine with a Docker engine and nothing else. testdata/pgimage/build.sh makes an image for one that reaches no
// registry; it is named by PGLOCK_TEST_IMAGE.
func TestContainer(t *testing.T) {
	if !required("docker") {
		testcontainers.SkipIfProviderIsNotHealthy(t)
		if os.Getenv("PGLOCK_TEST_IMAGE") == "" && testing.Short() {
			t.Skip("would fetch an image: name one in PGLOCK_TEST_IMAGE")
		}
	}
	s, err := pgtemp.StartContainer(t.Context(), pgtemp.Options{Settings: map[string]string{"deadlock_timeout": "123ms"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Stop(); err != nil {
			t.Errorf("Stop: %v", err)
		}
		if err := dial(t.Context(), s.URL("postgres")); err == nil {
			t.Error("the server accepts connections after Stop")
		}
	}()
	if !strings.HasPrefix(s.How(), "container ") || s.Local() {
		t.Errorf("How() = %q, Local() = %v", s.How(), s.Local())
	}
	if got := one[string](t, s, `SELECT current_setting('deadlock_timeout')`); got != "123ms" {
		t.Errorf("deadlock_timeout = %q, want 123ms", got)
	}
	if err := s.Halt(t.Context(), pgtemp.Fast); err == nil {
		t.Error("Halt of a container: no error")
	}
}
