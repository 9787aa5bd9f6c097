package pgtemp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/fencedlock/fencedlock/internal/pgtemp/sandbox"
)

const oldestMajor = 14

// usualPlaces are where packages put the binaries without putting them on the PATH.
var usualPlaces = []string{
	"/usr/lib/postgresql/*/bin",                          // Debian, Ubuntu
	"/usr/pgsql-*/bin",                                   // the PostgreSQL project's RPMs
	"/opt/homebrew/opt/postgresql@*/bin",                 // Homebrew, Apple silicon
	"/usr/local/opt/postgresql@*/bin",                    // Homebrew, Intel
	"/Applications/Postgres.app/Contents/Versions/*/bin", // Postgres.app
}

// binaries is a folder that holds initdb and postgres.
type binaries struct {
	dir     string
	version string // "15.18"
	major   int
}

func (b binaries) path(program string) string { return filepath.Join(b.dir, program) }

// findBinaries looks where people keep them, in the order in which people would expect it.
func findBinaries(ctx context.Context) (binaries, error) {
	if err := sandbox.Usable(); err != nil {
		return binaries{}, err
	}
	if dir := os.Getenv("PGLOCK_TEST_BIN"); dir != "" {
		b, err := inspect(ctx, dir)
		if err != nil {
			return b, fmt.Errorf("pgtemp: PGLOCK_TEST_BIN: %w", err)
		}
		return b, nil
	}
	var named []string
	if program, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(program); err == nil {
			named = append(named, filepath.Dir(real))
		}
		named = append(named, filepath.Dir(program))
	}
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		named = append(named, strings.TrimSpace(string(out)))
	}
	for _, dir := range named {
		if b, err := inspect(ctx, dir); err == nil {
			return b, nil
		}
	}
	return newest(ctx)
}

// newest returns the newest of the versions in the usual places.
func newest(ctx context.Context) (binaries, error) {
	var found []binaries
	for _, place := range usualPlaces {
		dirs, _ := filepath.Glob(place) // the patterns are ours and well formed
		for _, dir := range dirs {
			if b, err := inspect(ctx, dir); err == nil {
				found = append(found, b)
			}
		}
	}
	if len(found) == 0 {
		return binaries{}, fmt.Errorf("no initdb and postgres of version %d or later on the PATH or in the usual places (apt-get install postgresql)", oldestMajor)
	}
	return slices.MaxFunc(found, func(a, b binaries) int { return a.major - b.major }), nil
}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) ((\d+)\S*)`)

// inspect tells whether dir holds a usable server, and which.
func inspect(ctx context.Context, dir string) (binaries, error) {
	b := binaries{dir: dir}
	if _, err := exec.LookPath(b.path("initdb")); err != nil {
		return b, fmt.Errorf("no initdb in %s: %w", dir, errors.Unwrap(err))
	}
	out, err := exec.CommandContext(ctx, b.path("postgres"), "--version").Output()
	if err != nil {
		return b, fmt.Errorf("%s --version: %w", b.path("postgres"), err)
	}
	match := versionPattern.FindSubmatch(out)
	if match == nil {
		return b, fmt.Errorf("%s --version says %q", b.path("postgres"), out)
	}
	b.version = string(match[1])
	b.major, _ = strconv.Atoi(string(match[2])) // digits, says the pattern
	if b.major < oldestMajor {
		return b, fmt.Errorf("%s has PostgreSQL %s, want %d or later", dir, b.version, oldestMajor)
	}
	return b, nil
}
