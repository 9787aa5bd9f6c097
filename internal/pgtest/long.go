package pgtest

import (
	"os"
	"testing"
)

// Long reports whether the long mode is asked for, in which a test does all that it can.
func Long() bool { return os.Getenv("PGLOCK_LONG") == "1" }

// Rounds says how often a test does what it does again and again: usual, or long where PGLOCK_LONG=1 asks for the long mode,
// as CI does. Under -short it is a quarter of usual, and 1 at the least
// where usual is.
func Rounds(usual, long int) int {
	switch {
	case Long():
		return long
	case testing.Short():
		return max(usual/4, min(usual, 1))
	}
	return usual
}
