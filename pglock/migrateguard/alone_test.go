package migrateguard_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/golang-migrate/migrate/v4/source/iofs"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock/migrateguard"
)

// Four processes start together on an empty database, with a migration that builds an index concurrently: golang-migrate alone,
// with its own driver, beside the guard. How many of theirs fail is counted and printed, and is theirs to change; none of ours
// does. Only in the long mode: it compares, and takes 160 processes.
func TestBesideGolangMigrateAlone(t *testing.T) {
	if !pgtest.Long() {
		t.Skip("160 processes: PGLOCK_LONG=1")
	}
	t.Parallel()
	alone := build(t)
	folder := t.TempDir()
	for name, text := range map[string]string{
		"1_books.up.sql": "CREATE TABLE books (title text); INSERT INTO books SELECT i::text FROM generate_series(1, 1000) i",
		"2_index.up.sql": "CREATE INDEX CONCURRENTLY books_title ON books (title)",
		"3_last.up.sql":  "CREATE TABLE last ()",
	} {
		must(t, "write", os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	const rounds = 20
	theirs, theirRounds, ours := 0, 0, 0
	said := map[string]int{}
	for range rounds {
		n := race(t, said, func(url string) *exec.Cmd { return exec.Command(alone, url, folder) })
		theirs += n
		theirRounds += min(n, 1)
		ours += race(t, map[string]int{}, func(url string) *exec.Cmd {
			cmd := exec.Command(os.Args[0], "-test.run=^TestReplicaProcess$", "-test.timeout=60s")
			cmd.Env = append(os.Environ(), "MIGRATEGUARD_REPLICA="+url, "MIGRATEGUARD_FOLDER="+folder)
			return cmd
		})
	}
	t.Logf("golang-migrate alone: %d of %d processes failed, in %d of %d rounds %v; under the guard: %d of %d",
		theirs, 4*rounds, theirRounds, rounds, said, ours, 4*rounds)
	if ours > 0 {
		t.Errorf("%d of ours failed", ours)
	}
}

// race starts four processes together on an empty database, and returns how many of them failed.
func race(t *testing.T, said map[string]int, process func(url string) *exec.Cmd) (failed int) {
	t.Helper()
	d := pgtest.Empty(t)
	d.Exec(t, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = ''100ms''', current_database()); END $$`)
	out := make([]bytes.Buffer, 4)
	errs := together(4, func(i int) error {
		cmd := process(d.URL)
		cmd.Stdout, cmd.Stderr = &out[i], &out[i]
		return cmd.Run()
	})
	for i, err := range errs {
		if err == nil {
			continue
		}
		failed++
		t.Logf("%v: %s", err, &out[i])
		for _, known := range []string{"deadlock detected", "Dirty database"} {
			if strings.Contains(out[i].String(), known) {
				said[known]++
			}
		}
	}
	return failed
}

// build builds the program that has golang-migrate alone.
func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "alone")
	cmd := exec.Command("go", "build", "-o", program, ".")
	cmd.Dir = filepath.Join("testdata", "alone")
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("golang-migrate's own driver cannot be built here: %v\n%s", err, out)
	}
	return program
}

// TestReplicaProcess is another process that calls Up when it starts. It is no test by itself.
func TestReplicaProcess(t *testing.T) {
	url := os.Getenv("MIGRATEGUARD_REPLICA")
	if url == "" {
		t.Skip("only as another process")
	}
	src, err := iofs.New(os.DirFS(os.Getenv("MIGRATEGUARD_FOLDER")), ".")
	must(t, "iofs", err)
	must(t, "Up", open(t, url, src, migrateguard.Config{}).Up(context.Background()))
}
