package pgtemp

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// CheckClock returns nil if a server can be given a clock of its own here, and else why not.
func CheckClock() error {
	_, err := faketime()
	return err
}

// faketime finds the library that lies to a program about the time.
func faketime() (string, error) {
	if path := os.Getenv("PGLOCK_TEST_FAKETIME"); path != "" {
		return path, nil
	}
	if runtime.GOOS == "linux" {
		for _, place := range []string{
			"/usr/lib/*/faketime/libfaketime.so.1", // Debian, Ubuntu
			"/usr/lib*/faketime/libfaketime.so.1",  // Fedora, Arch
			"/usr/local/lib/faketime/libfaketime.so.1",
		} {
			if found, _ := filepath.Glob(place); len(found) > 0 {
				return found[0], nil
			}
		}
	}
	return "", errors.New("pgtemp: no libfaketime to give a server another clock (Debian, Ubuntu: apt-get install libfaketime), and none in PGLOCK_TEST_FAKETIME")
}

// clock is the environment of a server whose clock is ahead. Its timers run as ever.
func clock(ahead time.Duration) ([]string, error) {
	if ahead == 0 {
		return nil, nil
	}
	library, err := faketime()
	if err != nil {
		return nil, err
	}
	return []string{"LD_PRELOAD=" + library, fmt.Sprintf("FAKETIME=%+.6f", ahead.Seconds()), "FAKETIME_DONT_FAKE_MONOTONIC=1"}, nil
}
