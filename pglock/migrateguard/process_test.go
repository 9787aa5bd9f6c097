//go:build unix

package migrateguard_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/golang-migrate/migrate/v4/source"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/fencedlock/fencedlock/pglock/migrateguard"
)

// TestRunnerProcess is another process that migrates. It is no test by itself.
func TestRunnerProcess(t *testing.T) {
	url := os.Getenv("MIGRATEGUARD_RUNNER")
	if url == "" {
		t.Skip("only as another process")
	}
	g := open(t, url, twoOfARunner(t), migrateguard.Config{Lease: pglock.Config{TTL: 2e9}, Session: os.Getenv("MIGRATEGUARD_SESSION") != ""})
	must(t, "Up", g.Up(context.Background()))
}

func twoOfARunner(t *testing.T) source.Driver {
	return files(t, "1_a.up.sql", "INSERT INTO public.runs VALUES (1)", "2_b.up.sql", gated)
}

// The process is killed in the middle of a migration. Its backend ends by itself, its lock is free soon, and who waited says what
// was left behind. What had been done before is not done again.
func TestAKilledRunner(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]migrateguard.Config{"lease": {}, "session": {Session: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			newGate(t, d) // which is never opened
			cmd := exec.Command(os.Args[0], "-test.run=^TestRunnerProcess$", "-test.timeout=60s")
			cmd.Env = append(os.Environ(), "MIGRATEGUARD_RUNNER="+d.URL)
			if cfg.Session {
				cmd.Env = append(cmd.Env, "MIGRATEGUARD_SESSION=1")
			}
			must(t, "start", cmd.Start())
			t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() }) //nolint:errcheck // it was killed
			atWork(t, d)
			told, notify := events()
			cfg.Notify = notify
			waiter := async(func() error { return open(t, d.URL, twoOfARunner(t), cfg).Up(soon(t)) })
			next(t, told, migrateguard.Waiting)

			must(t, "kill", cmd.Process.Kill())
			wantErr(t, "Up of the waiter", happens(t, "the waiter ends", waiter), migrateguard.ErrDirty, "version 2", "Force(1)")
			if pgtest.Query[bool](t, d, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' AND query LIKE 'DO $$ BEGIN LOOP EXIT%')`) {
				t.Error("its backend still works")
			}
			if n := pgtest.Query[int](t, d, `SELECT count(*) FROM runs`); n != 1 {
				t.Errorf("the first migration ran %d times", n)
			}
			nothingLeft(t, d)
		})
	}
}

// The process is stopped in the middle of a migration, as a frozen container is, and loses its lease; its kernel keeps the connection. Whoever has
// the lease waits for the SQL to end, and not for the process. When that goes on, it finds out, and begins nothing.
func TestAStoppedRunner(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	gate := newGate(t, d)
	cmd := exec.Command(os.Args[0], "-test.run=^TestRunnerProcess$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), "MIGRATEGUARD_RUNNER="+d.URL)
	must(t, "start", cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() }) //nolint:errcheck // it has ended
	atWork(t, d)
	must(t, "stop", cmd.Process.Signal(syscall.SIGSTOP))
	told, notify := events()
	waiter := async(func() error { return open(t, d.URL, twoOfARunner(t), migrateguard.Config{Notify: notify}).Up(soon(t)) })
	for e := next(t, told, migrateguard.Waiting); !errors.Is(e.Err, advisoryHeld); {
		e = next(t, told, migrateguard.Waiting)
	}
	gate.release()
	wantErr(t, "Up of the waiter", happens(t, "the waiter ends", waiter), migrateguard.ErrDirty, "version 2", "Force(1)")
	must(t, "continue", cmd.Process.Signal(syscall.SIGCONT))
	if err := happens(t, "the runner ends", async(cmd.Wait)); err == nil {
		t.Error("Up of the runner worked, want it to be told of the loss")
	}
	if got := ran(t, d); got != "1" {
		t.Errorf("the migrations that ran are %s", got)
	}
	wantVersion(t, d, "2 dirty")
	nothingLeft(t, d)
}
