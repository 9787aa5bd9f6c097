package pgtemp

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// ErrNoDump: there is no pg_dump that can read the server.
var ErrNoDump = errors.New("pgtemp: no pg_dump of the server's version or later beside its binaries or on the PATH (Debian, Ubuntu: apt-get install postgresql-client)")

// Dump returns a database as pg_dump writes it: SQL, to be run in one call in an empty one, as the superuser. Roles are not in
// it. The error may be ErrNoDump. Local servers only.
func (s *Server) Dump(ctx context.Context, database string) (string, error) {
	if s.local == nil {
		return "", errNotLocal
	}
	program, err := s.local.bin.dumper(ctx)
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, program, "--inserts", s.URL(database)).Output()
	if err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			return "", fmt.Errorf("pgtemp: pg_dump: %w: %s", err, failed.Stderr)
		}
		return "", fmt.Errorf("pgtemp: pg_dump: %w", err)
	}
	return commands.ReplaceAllString(string(out), ""), nil
}

// commands are those of psql, of which newer versions write some.
var commands = regexp.MustCompile(`(?m)^\\\w.*$`)

var dumpVersion = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// dumper finds a pg_dump, which must not be older than the server.
func (b binaries) dumper(ctx context.Context) (string, error) {
	for _, program := range []string{b.path("pg_dump"), "pg_dump"} {
		out, err := exec.CommandContext(ctx, program, "--version").Output()
		if err != nil {
			continue // not there
		}
		match := dumpVersion.FindStringSubmatch(strings.TrimSpace(string(out)))
		if match == nil {
			continue
		}
		if major, err := strconv.Atoi(match[1]); err == nil && major >= b.major {
			return program, nil
		}
	}
	return "", ErrNoDump
}
