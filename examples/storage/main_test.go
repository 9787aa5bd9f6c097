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

const programVariable = "STORAGE_TEST_PROGRAM"

// The test binary is the program itself when it is told so: nothing has to be built.
func TestMain(m *testing.M) {
	if os.Getenv(programVariable) != "" {
		main()
		os.Exit(0)
	}
	pgtest.Main(m)
}

// run runs the example, on the server that the tests share, and returns what it printed and its exit status. It leaves no
// folder behind.
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
	folder := t.TempDir()
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), programVariable+"=1", "PGLOCK_TEST_URL="+server.URL("postgres"), "TMPDIR="+folder, "TMP="+folder)
	cmd.Stdout, cmd.Stderr = &out, &problems
	err = cmd.Run()
	t.Logf("%s\n%s%s", cmd, &out, &problems)
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
	return out.String(), problems.String(), cmd.ProcessState.ExitCode()
}

func TestStory(t *testing.T) {
	t.Parallel()
	out, problems, status := run(t)
	if status != 0 || problems != "" {
		t.Fatalf("exit status %d, stderr %q, want 0 and nothing", status, problems)
	}
	m := follow(t, out,
		`database  is ready: `,
		`service   takes files at http://`,
		`client A  holds the lock, token (?P<a>\d+)`,
		`client A  PUT "draft": 204 `,
		`client B  wants the lock "reports"`,
		`client B  holds the lock, token (?P<b>\d+)`,
		`client B  PUT "report": 204 `,
		`service   the file is now: "report"`,
		`client A  PUT "late draft": 409 Conflict`,
		`application/problem\+json`,
		`{"type":"urn:fencedlock:problem:stale-token",.*"token":(?P<mine>\d+),"last_token":(?P<theirs>\d+)}`,
		`service   the file is now: "report"`,
		`client C  PUT "a report [^"]+": 428 Precondition Required`,
		`application/problem\+json`,
		`{"type":"urn:fencedlock:problem:missing-token",`,
		`service   the file is now: "report"`,
		`client B  PUT "report, with a postscript": 204 `, // the same token passes again
		`service   the file is now: "report, with a postscript"`,
	)
	if m["a"] >= m["b"] || m["mine"] != m["a"] || m["theirs"] != m["b"] { // of one length, so that text compares as numbers do
		t.Errorf("tokens do not fit: %v", m)
	}
}

// The check of the file can fail: without the guard the late PUT gets in.
func TestStoryWithoutGuard(t *testing.T) {
	t.Parallel()
	out, problems, status := run(t, "-guard=false")
	if status != 1 || !strings.Contains(problems, "the PUT of client A got in") {
		t.Errorf("exit status %d, stderr %q, want 1 and that the PUT got in", status, problems)
	}
	follow(t, out,
		`client B  PUT "report": 204 `,
		`client A  PUT "late draft": 204 `,
		`service   the file is now: "late draft"`,
	)
}

// The file decides, whatever the answer; and a PUT that is refused for another reason shows nothing.
func TestVerdict(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		written      bool
		status, want int
		problem      string
	}{
		{true, 204, 204, ""},
		{false, 409, 409, ""},
		{true, 409, 409, "got in"},
		{true, 204, 409, "got in"},
		{false, 204, 204, "is not in the file"},
		{false, 503, 409, "was answered with 503"},
	} {
		err := verdict("client A", c.written, c.status, c.want)
		if (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("verdict(%v) = %v, want %q", c, err, c.problem)
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
