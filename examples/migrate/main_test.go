package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

const directorVariable = "MIGRATE_TEST_DIRECTOR"

// The test binary is the program itself when it is told so: nothing has to be built.
func TestMain(m *testing.M) {
	if os.Getenv(directorVariable) != "" || os.Getenv(replicaVariable) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// The story ends by itself with status 0, and has its scenes in their order.
func TestStory(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // a container may have to be fetched
	defer cancel()
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), directorVariable+"=1")
	// The replicas write to the same stderr, so one that is left behind makes Wait fail with ErrWaitDelay.
	cmd.WaitDelay = 10 * time.Second
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	err = cmd.Run()
	t.Logf("%s%s", &out, &problems)
	if err != nil || problems.Len() > 0 {
		t.Fatalf("the example: %v, stderr %q", err, &problems)
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("colours, although stdout is no terminal")
	}
	follow(t, out.String(),
		`database   is ready, and empty`,
		`Act one`,
		`director   sees replica (.) build an index, which waits for the report`,
		`director   kills replica`,
		`director   has read the report`,
		`replica .  migration 2 of 2, 2_title: done`,
		`replica .  serves`,
		`replica .  serves`,
		`replica .  serves`,
		`database   is at version 2, indexes: books_pkey, books_title$`,
		`Act two`,
		`director   sees replica (.) build an index`,
		`director   kills replica`,
		`replica .  DIRTY: .*version 3 .*Force\(2\)`,
		`replica .  DIRTY: .*version 3 .*Force\(2\)`,
		`replica .  DIRTY: .*version 3 .*Force\(2\)`,
		`database   is at version 3, dirty, .*books_author \(invalid\)`,
		`director   drops what was left behind, and forces version 2`,
		`replica E  serves`,
		`database   is at version 3, indexes: books_pkey, books_title, books_author$`,
	)
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
