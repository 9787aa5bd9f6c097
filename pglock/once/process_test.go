//go:build unix

package once_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/fencedlock/fencedlock/pglock/once"
)

// TestRunnerProcess is another process, which runs the job and does not finish it. It is no test by itself.
func TestRunnerProcess(t *testing.T) {
	url := os.Getenv("ONCE_RUNNER")
	if url == "" {
		t.Skip("only as another process")
	}
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	err = runner(t, url, "killed", pool).Run(context.Background(), "report", tick, func(ctx context.Context, _ *pglock.Lease) error {
		fmt.Println("at work")
		<-ctx.Done()
		return nil
	})
	t.Errorf("Run = %v", err)
}

// The process is killed in the middle of its work. That it began is on record; it is not run again, and with Retry it is, when its
// lease is over and not before.
func TestAKilledRunner(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	runs := runner(t, d.URL, "next", d.Pool(t))
	cmd := exec.Command(os.Args[0], "-test.run=^TestRunnerProcess$", "-test.timeout=120s")
	cmd.Env, cmd.Stderr = append(os.Environ(), "ONCE_RUNNER="+d.URL), os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() }) //nolint:errcheck // it was killed
	lines := bufio.NewScanner(out)
	if said := happens(t, "it says something", async(func() string { lines.Scan(); return lines.Text() })); said != "at work" {
		t.Fatalf("it says %q", said)
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("it was not killed")
	}
	wantDuplicate(t, "Run while its lease lives", runs.Run(soon(t), "report", tick, nothing(t)), once.Running, "killed")
	waitsInVain(t, d, runs, "killed")

	d.Age(t, lockName, time.Minute)

	wantDuplicate(t, "Run", runs.Run(soon(t), "report", tick, nothing(t)), once.Unfinished, "killed")
	wantErr(t, "Run with Retry", runs.Run(soon(t), "report", tick, does(nil), once.Retry()), nil)
	if rec := last(t, runs); rec.Outcome != once.Done || rec.Owner != "next" || rec.Attempt != 2 {
		t.Errorf("on record: %+v", rec)
	}
}
