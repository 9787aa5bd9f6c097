package pgtemp_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
)

func TestMain(m *testing.M) {
	if os.Getenv(ownerVariable) != "" {
		beOwner()
	}
	os.Exit(m.Run())
}

// usable skips where there are no local binaries.
func usable(t *testing.T) {
	t.Helper()
	if err := pgtemp.CheckLocal(t.Context()); err != nil {
		if required("local") {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// local starts a server from local binaries, or skips.
func local(t *testing.T, o pgtemp.Options) *pgtemp.Server {
	t.Helper()
	usable(t)
	o.Fresh = true
	s, err := pgtemp.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Errorf("Stop: %v", err)
		}
	})
	return s
}

// required reports whether PGLOCK_TEST_REQUIRE names a part, whose tests must then not be skipped.
func required(part string) bool {
	return slices.Contains(strings.Split(os.Getenv("PGLOCK_TEST_REQUIRE"), ","), part)
}

// one returns one value from database postgres, over a connection of its own.
func one[T any](t *testing.T, s *pgtemp.Server, sql string) T {
	t.Helper()
	v, err := ask[T](t.Context(), s, sql)
	if err != nil {
		t.Fatalf("%s: %v\n%s", sql, err, s.Log())
	}
	return v
}

func ask[T any](ctx context.Context, s *pgtemp.Server, sql string) (v T, err error) {
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return v, err
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, sql).Scan(&v)
	return v, err
}

func execute(t *testing.T, s *pgtemp.Server, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func TestServerHasTheSettingsAskedForAndStopsTwice(t *testing.T) {
	t.Parallel()
	s := local(t, pgtemp.Options{Durable: true, Settings: map[string]string{"deadlock_timeout": "123ms"}})
	t.Log(s.How())
	for name, want := range map[string]string{
		"deadlock_timeout": "123ms", "fsync": "on", "synchronous_commit": "on", "max_connections": "200", "server_encoding": "UTF8",
	} {
		if got := one[string](t, s, fmt.Sprintf("SELECT current_setting('%s')", name)); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	folder := one[string](t, s, `SELECT current_setting('data_directory')`)
	for range 2 {
		if err := s.Stop(); err != nil {
			t.Fatalf("Stop: %v", err)
		}
	}
	if _, err := os.Stat(folder); !os.IsNotExist(err) {
		t.Errorf("the data folder after Stop: %v, want it gone", err)
	}
	if err := s.Halt(t.Context(), pgtemp.Fast); err != nil {
		t.Errorf("Halt after Stop: %v", err)
	}
}

func TestStartTellsWhatIsMissing(t *testing.T) {
	t.Setenv("PGLOCK_TEST_BIN", t.TempDir())
	if _, err := pgtemp.Start(t.Context(), pgtemp.Options{Fresh: true}); err == nil {
		t.Error("Start with an empty PGLOCK_TEST_BIN: no error")
	} else {
		t.Log(err)
	}
}

func TestStartReportsTheServersOwnComplaint(t *testing.T) {
	t.Parallel()
	usable(t)
	_, err := pgtemp.Start(t.Context(), pgtemp.Options{Fresh: true, Settings: map[string]string{"no_such_setting": "1"}})
	if err == nil {
		t.Fatal("Start with an unknown setting: no error")
	}
	t.Log(err)
}
