//go:build unix

package pglock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const holderTTL = 2 * time.Second

// A holder is another process that holds the lock "a". For each line that it is sent it does a piece of work.
type holder struct {
	cmd *exec.Cmd
	out *bufio.Scanner
	in  *os.File
}

// startHolder starts this test binary again, as a holder.
func startHolder(t *testing.T, d *pgtest.Database) *holder {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestHolderProcess$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), "PGLOCK_HOLDER="+d.URL)
	cmd.Stdin, cmd.Stderr = read, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read.Close() //nolint:errcheck // the child has it
	h := &holder{cmd: cmd, out: bufio.NewScanner(out), in: write}
	t.Cleanup(func() {
		write.Close()      //nolint:errcheck // the child ends, if it still runs
		cmd.Process.Kill() //nolint:errcheck // it may have ended
		cmd.Wait()         //nolint:errcheck // killed
	})
	if got := h.hear(t); got != "held" {
		t.Fatalf("the holder says %q", got)
	}
	return h
}

func (h *holder) hear(t *testing.T) string {
	t.Helper()
	return happens(t, "the holder says something", async(func() string { h.out.Scan(); return h.out.Text() }))
}

func (h *holder) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := h.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// work has the holder do a piece of work, and returns what it says of it.
func (h *holder) work(t *testing.T) string {
	t.Helper()
	fmt.Fprintln(h.in, "work") //nolint:errcheck // its answer tells
	return h.hear(t)
}

// TestHolderProcess is the other process. It is no test by itself.
func TestHolderProcess(t *testing.T) {
	url := os.Getenv("PGLOCK_HOLDER")
	if url == "" {
		t.Skip("only as another process")
	}
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	c := unclosed(t, url, pglock.Config{TTL: holderTTL})
	l := take(t, c, "a")
	fmt.Println("held")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		valid := l.Valid()
		err := fence.Tx(ctx, pool, l.Grant(), "diary", func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO diary (who) VALUES ('holder')`)
			return err
		})
		fmt.Printf("valid %v, stale %v, written %v, lost %v\n", valid, errors.Is(err, fence.ErrStale), err == nil, errors.Is(l.Err(), pglock.ErrLost))
	}
	os.Exit(0) // as a process that does not clean up
}

func TestAProcessThatWasStoppedKnowsBeforeItWorksOn(t *testing.T) {
	t.Parallel()
	d, pool := diary(t)
	h := startHolder(t, d)
	if got := h.work(t); got != "valid true, stale false, written true, lost false" {
		t.Fatalf("before the pause: %s", got)
	}
	h.signal(t, syscall.SIGSTOP)
	next := granted(t, acquiring(soon(t), client(t, d), "a")) // when the TTL is over
	wantErr(t, "the next holder's write", write(t, pool, next, "next"), nil)

	h.signal(t, syscall.SIGCONT)

	if got := h.work(t); got != "valid false, stale true, written false, lost true" {
		t.Errorf("after the pause: %s", got)
	}
	if got := entries(t, d); got != "holder next" {
		t.Errorf("written: %q", got)
	}
	stillHeld(t, d, next)
}

func TestAProcessThatWasStoppedHasLostEvenWhatNobodyTook(t *testing.T) {
	t.Parallel()
	d, _ := diary(t)
	h := startHolder(t, d)
	h.signal(t, syscall.SIGSTOP)
	d.WaitFor(t, isFree, "a")
	h.signal(t, syscall.SIGCONT)
	if got := h.work(t); !strings.HasPrefix(got, "valid false") || !strings.HasSuffix(got, "lost true") {
		t.Errorf("after the pause: %s", got)
	}
	if holds(t, d, "a") {
		t.Error("a lapsed lease was revived")
	}
}

func TestTheLockOfAKilledProcessIsFreeWhenItsTTLIsOver(t *testing.T) {
	t.Parallel()
	d, _ := diary(t)
	h := startHolder(t, d)
	c := client(t, d)
	refused(t, c, "a")
	h.signal(t, syscall.SIGKILL)
	until := pgtest.Query[time.Time](t, d, `SELECT clock_timestamp()`).Add(holderTTL)

	granted(t, acquiring(soon(t), c, "a"))

	late := pgtest.Query[time.Time](t, d, `SELECT granted_at FROM pglock.leases`).Sub(until)
	if late > 2*time.Second { // a poll is a second and a half at most
		t.Errorf("granted %v after the TTL was over", late)
	}
}
