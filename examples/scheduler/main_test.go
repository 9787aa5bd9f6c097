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
)

const directorVariable = "SCHEDULER_TEST_DIRECTOR"

// The test binary is the program itself when it is told so: nothing has to be built.
func TestMain(m *testing.M) {
	if os.Getenv(directorVariable) != "" || os.Getenv(replicaVariable) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// tell runs the example and returns what it printed and how it ended.
func tell(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute) // a container may have to be fetched
	defer cancel()
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), directorVariable+"=1")
	// The replicas write to the same stderr, so one that is left behind makes Wait fail with ErrWaitDelay.
	cmd.WaitDelay = 10 * time.Second
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	err = cmd.Run()
	t.Logf("%s%s", &out, &problems)
	return out.String(), problems.String(), err
}

func TestStory(t *testing.T) {
	t.Parallel()
	out, problems, err := tell(t)
	if err != nil || problems != "" {
		t.Fatalf("the example: %v, stderr %q", err, problems)
	}
	if strings.Contains(out, "\x1b") {
		t.Error("colours, although stdout is no terminal")
	}
	follow(t, out,
		`database   is ready: `,
		`replica (.)  has run the job`,
		`replica (.)  has run the job`,
		`director   kills replica . \(kill -9\)`,
		`replica (.)  has run the job`,
		`replica (.)  has run the job`,
		`director   ends the others`,
		`replica .  has ended`,
		`database   tick \d+: 1 run by replica .`,
		`database   tick \d+: 1 run by replica .`,
		`database   tick \d+: 1 run by replica .`,
		`database   tick \d+: 1 run by replica .`,
		`Each tick ran once`,
	)
}

// The check at the end of the story can fail: without the lock each replica runs each tick.
func TestStoryWithoutLock(t *testing.T) {
	t.Parallel()
	_, problems, err := tell(t, "-lock=false")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !regexp.MustCompile(`tick \d+ ran \d times`).MatchString(problems) {
		t.Errorf("the example without its lock ended with %v, want exit status 1; stderr %q", err, problems)
	}
}

// follow finds each scene in a line of its own, in order.
func follow(t *testing.T, out string, scenes ...string) {
	t.Helper()
	lines := strings.Split(out, "\n")
	for _, scene := range scenes {
		found := false
		for !found && len(lines) > 0 {
			found, lines = regexp.MustCompile(scene).MatchString(lines[0]), lines[1:]
		}
		if !found {
			t.Fatalf("the story lacks, at its place: %s", scene)
		}
	}
}
