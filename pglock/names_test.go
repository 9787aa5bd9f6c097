package pglock_test

import (
	"context"
	"strings"
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

func longText(n int) string { return strings.Repeat("abcdefghi/", n/10+1)[:n] }

// Each of them is a lock of its own.
var goodNames = []string{
	"a", "A", "a ", " a", " ", "a/b", "a/", "/b", "a%", "a_", "%", "ab", "\n", "\t", "\\", "'", `"`, `a"b`, "''", "$1", "?", ":x", "NULL", "null", "{}", `{"a":1}`, "(a,b)",
	"'; drop table x;--", "é", "e\u0301", "用户", "🔒", "\u200b", "\u202e", "\ufeff", "a\u00a0", "\uffff", "\x7f", "\x01", "..", "pglock.leases",
	longText(255), longText(254), strings.Repeat("é", 127), strings.Repeat("x", 255),
}

var badNames = map[string]string{
	"empty": "", "256 bytes": longText(256), "256 bytes in 128 characters": strings.Repeat("é", 128), "2,705 bytes": longText(2705), "100,000 bytes": strings.Repeat("a", 100_000),
	"NUL": "a\x00b", "only NUL": "\x00", "invalid UTF-8": "\xff", "cut character": "a\xc3", "surrogate": "\xed\xa0\x80", "overlong": "\xc0\xaf", "long and invalid": strings.Repeat("\xff", 300),
}

func TestEachNameIsALockOfItsOwn(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c, rival := client(t, d), client(t, d)
	for _, name := range goodNames {
		l := take(t, c, name) // though all the others are held
		if l.Name() != name {
			t.Errorf("Name = %q, want %q", l.Name(), name)
		}
	}
	for _, name := range goodNames {
		if held := refused(t, rival, name); held.Name != name {
			t.Errorf("told that %q is held, want %q", held.Name, name)
		}
		if s, err := rival.Inspect(t.Context(), name); err != nil || s.Name != name || !s.Held {
			t.Errorf("Inspect(%q) = %+v, %v", name, s, err)
		}
	}
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pglock.leases`); n != len(goodNames) {
		t.Errorf("%d rows for %d names", n, len(goodNames))
	}
}

func TestABadNameIsRefusedBeforeAnySQL(t *testing.T) {
	c := nowhere(t)
	for what, name := range badNames {
		for how, call := range map[string]func() error{
			"TryAcquire": func() error { _, err := c.TryAcquire(t.Context(), name); return err },
			"Acquire":    func() error { _, err := c.Acquire(t.Context(), name); return err },
			"Do": func() error {
				return c.Do(t.Context(), name, func(context.Context, *pglock.Lease) error { return nil })
			},
			"Inspect": func() error { _, err := c.Inspect(t.Context(), name); return err },
		} {
			err := call()
			wantErr(t, how+" of a name: "+what, err, pglock.ErrInvalidName)
			if err != nil && len(err.Error()) > 500 {
				t.Errorf("the message has %d bytes", len(err.Error()))
			}
		}
	}
}
