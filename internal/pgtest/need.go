package pgtest

import (
	"fmt"
	"os/exec"
	"testing"
)

// NeedPrograms skips the test where a program is not on the PATH, with how to install it; part is its name in
// PGLOCK_TEST_REQUIRE.
func NeedPrograms(t testing.TB, part, install string, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			missing(t, part, fmt.Sprintf("%s is not installed: %s", p, install))
		}
	}
}
