package pgtest

import (
	"os"
	"testing"
)

// Rounds says how often a test does what it does again and again: usual, or long where PGLOCK_LONG=1 asks for the long mode,
// as CI does. Under -short it is a quarter of usual, and 1 at the least
// where usual is.
func Rounds(usual, long int) int {
	switch {
	case os.Getenv("PGLOCK_LONG") == "1":
		return long
	case testing.Short():
		return max(usual/4, min(usual, 1))
	}
	return usual
}
