//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

const programVariable = "INVOICES_TEST_PROGRAM"

// The test binary is the program itself when it is told so: nothing has to be built.
func TestMain(m *testing.M) {
	if os.Getenv(programVariable) != "" || os.Getenv(workerVariable) != "" {
		main()
		os.Exit(0)
	}
	pgtest.Main(m)
}

// program is the example, not yet started, on the server that the tests share.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	server := pgtest.Empty(t).Server
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), programVariable+"=1", "PGLOCK_TEST_URL="+server.URL("postgres"))
	// The workers write to the same stderr, so a worker that is left behind makes Wait fail with ErrWaitDelay.
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// run runs the example and returns what it printed and its exit status.
func run(t *testing.T, cmd *exec.Cmd) (stdout, stderr string, status int) {
	t.Helper()
	var out, problems bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &out
	}
	cmd.Stderr = &problems
	err := cmd.Run()
	t.Logf("%s\n%s%s", cmd, &out, &problems)
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	return out.String(), problems.String(), cmd.ProcessState.ExitCode()
}

func TestStory(t *testing.T) {
	t.Parallel()
	out, problems, status := run(t, program(t))
	if status != 0 || problems != "" {
		t.Fatalf("exit status %d, stderr %q, want 0 and nothing", status, problems)
	}
	m := follow(t, out,
		`database  is ready: `,
		`worker A  wants the lock "payments"`,
		`worker A  holds the lock, token (?P<a>\d+), and sees what is due: 120 for invoice 1, 120 for invoice 2`,
		`director  freezes worker A `,
		`worker B  wants the lock "payments"`,
		`worker B  holds the lock, token (?P<b>\d+), and sees what is due: 120 for invoice 1, 120 for invoice 2`,
		`worker B  has paid 120 for invoice 1, without the fence`,
		`worker B  has paid 120 for invoice 2, with the fence`,
		`director  lets worker A go on `,
		`worker A  has paid 120 for invoice 1, without the fence`,
		`worker A  REFUSED .* to pay invoice 2 with token (?P<mine>\d+), but (?P<theirs>\d+) `,
		`paid +invoice 1, without the fence +invoice 2, with the fence`,
		`worker A +120 +0$`,
		`worker B +120 +120$`,
		`in all +240, but 120 was due: TWICE +120$`,
	)
	if m["a"] >= m["b"] || m["mine"] != m["a"] || m["theirs"] != m["b"] { // of one length, so that text compares as numbers do
		t.Errorf("tokens do not fit: %v", m)
	}
}

// The check at the end can fail: without the fence both invoices are paid twice.
func TestStoryWithoutFence(t *testing.T) {
	t.Parallel()
	out, problems, status := run(t, program(t, "-fence=false"))
	if status != 1 || !strings.Contains(problems, "the fence has failed: invoice 2 was paid twice") {
		t.Errorf("exit status %d, stderr %q, want 1 and that invoice 2 was paid twice", status, problems)
	}
	follow(t, out,
		`worker A  has paid all that it wanted to, after its lease was lost`,
		`paid +invoice 1, without the fence +invoice 2, without it, too`,
		`worker A +120 +120$`,
		`in all +240, but 120 was due: TWICE +240, but 120 was due: TWICE$`,
	)
}

// An interrupter sends ^C when worker A is frozen, and keeps what is said.
type interrupter struct {
	t    *testing.T
	cmd  *exec.Cmd
	said bytes.Buffer
}

func (i *interrupter) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("freezes worker A")) {
		if err := i.cmd.Process.Signal(syscall.SIGINT); err != nil {
			i.t.Error(err)
		}
	}
	return i.said.Write(p)
}

// A ^C while worker A is frozen: the story ends, and the workers with it, or run fails.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	cmd := program(t)
	out := &interrupter{t: t, cmd: cmd}
	cmd.Stdout = out
	_, problems, status := run(t, cmd)
	if strings.Contains(out.said.String(), "lets worker A go on") {
		t.Errorf("the story went on after a ^C:\n%s", &out.said)
	}
	if status != 1 || !strings.Contains(problems, "interrupt") {
		t.Errorf("after a ^C: exit status %d, stderr %q, want 1 and the interrupt", status, problems)
	}
}

// When the story breaks off for another reason than ^C, a frozen worker is taken away all the same.
func TestEnd(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	w, err := (&director{url: "postgres://127.0.0.1:1/nobody"}).startWorker(ctx, "worker A")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Error(err)
	}
	w.end()
	if ctx.Err() != nil || w.ProcessState == nil {
		t.Errorf("the worker was not taken away: %v, %v", w.ProcessState, ctx.Err())
	}
}

// A run that shows nothing fails, too.
func TestVerdict(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		all     line
		refused bool
		want    string
	}{
		{line{One: 240, Two: 120}, true, ""},
		{line{One: 240, Two: 240}, false, "invoice 2 was paid twice"},
		{line{One: 240, Two: 240}, true, "invoice 2 was paid twice"}, // whatever worker A says
		{line{One: 240, Two: 0}, true, "invoice 2 was not paid"},
		{line{One: 120, Two: 120}, true, "nothing was shown"},
		{line{One: 240, Two: 120}, false, "not because the fence has refused"},
	} {
		err := verdict(c.all, c.refused)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("verdict(%v, refused %t) = %v, want %q", c.all, c.refused, err, c.want)
		}
	}
}

// follow finds each scene in a line of its own, in order, and returns what the groups caught.
func follow(t *testing.T, out string, scenes ...string) (caught map[string]string) {
	t.Helper()
	lines := strings.Split(out, "\n")
	caught = map[string]string{}
	for _, scene := range scenes {
		pattern := regexp.MustCompile(scene)
		match := []string(nil)
		for match == nil && len(lines) > 0 {
			match, lines = pattern.FindStringSubmatch(lines[0]), lines[1:]
		}
		if match == nil {
			t.Fatalf("the story lacks, at its place: %s", scene)
		}
		for i, name := range pattern.SubexpNames() {
			if name != "" {
				caught[name] = match[i]
			}
		}
	}
	return caught
}
