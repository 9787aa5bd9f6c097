package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
)

const programVariable = "WEBHOOK_TEST_PROGRAM"

// The test binary is the program itself when it is told so: nothing has to be built.
func TestMain(m *testing.M) {
	if os.Getenv(programVariable) != "" {
		main()
		os.Exit(0)
	}
	pgtest.Main(m)
}

// run runs the example, on the server that the tests share, and returns what it printed and its exit status.
func run(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	server := pgtest.Empty(t).Server
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out, problems bytes.Buffer
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), programVariable+"=1", "PGLOCK_TEST_URL="+server.URL("postgres"))
	cmd.Stdout, cmd.Stderr = &out, &problems
	err = cmd.Run()
	t.Logf("%s\n%s%s", cmd, &out, &problems)
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	return out.String(), problems.String(), cmd.ProcessState.ExitCode()
}

func TestStory(t *testing.T) {
	t.Parallel()
	out, problems, status := run(t)
	if status != 0 || problems != "" {
		t.Fatalf("exit status %d, stderr %q, want 0 and nothing", status, problems)
	}
	follow(t, out,
		`database   is ready: `,
		`bank       delivers evt_1, a payment of 100, 6 times at once, to 3 replicas`,
		`bank       delivers it once more`,
		`replica A  answers 200 known: .*done by "replica .", from `,
		`database   the invoice has a credit of 100$`,
		`mail       was sent: 1$`,
		`bank       the invoice is now "paid"; delivers evt_2 to replica A`,
		`replica A  has asked for the status, and is suspended`,
		`bank       the invoice is now "refunded"; delivers evt_3 to replica B`,
		`replica B  answers 200 done`,
		`database   the invoice is "refunded"`,
		`replica A  goes on`,
		`replica A  answers 503 fence: invoices id=42: stale token`,
		`database   the invoice is "refunded"`,
		`bank       delivers evt_2 again`,
		`replica C  answers 200 done`,
		`database   the invoice is "refunded"`,
	)
	if n := strings.Count(out, "answers 200 done"); n != 3 { // of evt_1, evt_2 and evt_3
		t.Errorf("%d deliveries were told that theirs was the one, want 3", n)
	}
}

// The checks of the story can fail: without once there are several mails, and without the fence the late write gets in.
func TestStoryWithoutOnce(t *testing.T) {
	t.Parallel()
	out, problems, status := run(t, "-once=false")
	if status != 1 || !strings.Contains(problems, "the mail was sent 7 times") {
		t.Errorf("exit status %d, stderr %q, want 1 and seven mails", status, problems)
	}
	follow(t, out, `database   the invoice has a credit of 100$`, `mail       was sent: 7$`) // the key was enough for the credit
}

func TestStoryWithoutFence(t *testing.T) {
	t.Parallel()
	out, problems, status := run(t, "-fence=false")
	if status != 1 || !strings.Contains(problems, "the late write of replica A got in") {
		t.Errorf("exit status %d, stderr %q, want 1 and that the late write got in", status, problems)
	}
	follow(t, out, `mail       was sent: 1$`, `replica B  answers 200 done`, `database   the invoice is "refunded"`, `replica A  goes on`, `database   the invoice is "paid"`)
}

// follow finds each scene in a line of its own, in order.
func follow(t *testing.T, out string, scenes ...string) {
	t.Helper()
	lines := strings.Split(out, "\n")
	for _, scene := range scenes {
		pattern, found := regexp.MustCompile(scene), false
		for !found && len(lines) > 0 {
			found, lines = pattern.MatchString(lines[0]), lines[1:]
		}
		if !found {
			t.Fatalf("the story lacks, at its place: %s", scene)
		}
	}
}
