//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const directorVariable = "QUICKSTART_TEST_DIRECTOR"

// The test binary is the program itself when it is told so: nothing has to be built.
func TestMain(m *testing.M) {
	if os.Getenv(directorVariable) != "" || os.Getenv(workerVariable) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// program is the quickstart, not yet started.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // a container may have to be fetched
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), directorVariable+"=1")
	// The workers write to the same stderr, so a worker that is left behind makes Wait fail with ErrWaitDelay.
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// tell runs the quickstart and returns what it printed and how it ended.
func tell(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, problems bytes.Buffer
	cmd := program(t, args...)
	cmd.Stdout, cmd.Stderr = &out, &problems
	err = cmd.Run()
	t.Logf("%s\n%s%s", cmd, &out, &problems)
	return out.String(), problems.String(), err
}

func TestStory(t *testing.T) {
	t.Parallel()
	out, problems, err := tell(t)
	if err != nil || problems != "" {
		t.Fatalf("the quickstart: %v, stderr %q", err, problems)
	}
	at, m := follow(t, out,
		`database  is ready: `,
		`worker A  wants the lock "invoice-42"`,
		`worker A  holds the lock, token (?P<a>\d+),`,
		`worker B  wants the lock "invoice-42"`,
		`director  freezes worker A `,
		`database  worker A has (?P<left>\S+) left of its lease: worker B waits`,
		`worker B  holds the lock, token (?P<b>\d+),`,
		`worker B  has written `,
		`database  the row is now: total 120 by worker B, token (?P<row>\d+)`,
		`director  lets worker A go on `,
		`worker A  learns from its context: .*lost: expired`,
		`worker A  writes all the same`,
		`worker A  REFUSED by the database: it wrote with token (?P<mine>\d+), but (?P<theirs>\d+) `,
		`database  the row is now: total 120 by worker B, token (?P<final>\d+)`,
	)
	a, b := number(t, m["a"]), number(t, m["b"])
	if a >= b {
		t.Errorf("worker A had token %d and worker B %d, want a later one to be greater", a, b)
	}
	if m["mine"] != m["a"] || m["theirs"] != m["b"] || m["row"] != m["b"] || m["final"] != m["b"] {
		t.Errorf("tokens do not fit: %v", m)
	}
	// What was left, was left a moment after worker A had been frozen.
	left, err := time.ParseDuration(m["left"])
	if waited := at[6] - at[4]; err != nil || waited < left.Seconds()-0.02 { // both are rounded
		t.Errorf("worker B took over %.2f s after worker A was frozen, want it to wait for the lease to lapse: %v (%v)", waited, left, err)
	}
	if strings.Contains(out, "\x1b") {
		t.Error("colours, although stdout is no terminal")
	}
}

// The check at the end of the story can fail: without the fence the late write gets in.
func TestStoryWithoutFence(t *testing.T) {
	t.Parallel()
	out, problems, err := tell(t, "-fence=false")
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
		t.Errorf("the quickstart without its fence ended with %v, want exit status 1", err)
	}
	if !strings.Contains(problems, "the late write of worker A got in") {
		t.Errorf("stderr %q does not say that the late write got in", problems)
	}
	follow(t, out,
		`worker B  has written `,
		`the row is now: total 120 by worker B`,
		`worker A  has written, after its lease was lost`,
		`the row is now: total 100 by worker A`,
	)
}

// A ^C while worker A is frozen: both workers go too.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	var problems bytes.Buffer
	cmd := program(t)
	cmd.Stderr = &problems
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		out.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), "freezes worker A") {
			_ = cmd.Process.Signal(syscall.SIGINT) // if it has ended, Wait says how
		}
	}
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
		t.Errorf("after a ^C: %v, want exit status 1\n%s%s", err, &out, &problems)
	}
	if !strings.Contains(problems.String(), "interrupt") {
		t.Errorf("stderr %q does not mention the interrupt", &problems)
	}
}

// follow finds each scene in a line of its own, in order, and returns the times of these lines and what the groups caught.
func follow(t *testing.T, out string, scenes ...string) (at []float64, caught map[string]string) {
	t.Helper()
	lines := strings.Split(out, "\n")
	caught = map[string]string{}
	for _, scene := range scenes {
		pattern := regexp.MustCompile(`^ *([0-9.]+) s  .*?` + scene)
		match := []string(nil)
		for match == nil && len(lines) > 0 {
			match, lines = pattern.FindStringSubmatch(lines[0]), lines[1:]
		}
		if match == nil {
			t.Fatalf("the story lacks, at its place: %s", scene)
		}
		seconds, _ := strconv.ParseFloat(match[1], 64)
		at = append(at, seconds)
		for i, name := range pattern.SubexpNames() {
			if name != "" {
				caught[name] = match[i]
			}
		}
	}
	return at, caught
}

func number(t *testing.T, digits string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
