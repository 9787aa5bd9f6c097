package pglock_test

import (
	"strings"
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

func TestTheOwnerLabelNeverDecidesWhoHolds(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	l := take(t, open(t, d.URL, pglock.Config{Owner: "sched-10"}), "a", pglock.NoRenewal())
	before := row(t, d, "a")
	for _, label := range []string{"sched-1", "sched-10", "sched-100", "sched-%", "", "sched-10'; --"} {
		c := open(t, d.URL, pglock.Config{Owner: label})
		if held := refused(t, c, "a"); held.Owner != "sched-10" || held.Token != l.Token() || held.Name != "a" {
			t.Errorf("told %q that the holder is %+v", label, held)
		}
		if err := c.Close(soon(t)); err != nil { // releases what c holds, and nothing else
			t.Error(err)
		}
	}
	if after := row(t, d, "a"); after != before {
		t.Errorf("the row changed from\n%s to\n%s", before, after)
	}
}

func TestTheOwnerLabelIsRefusedIfItCannotBeStored(t *testing.T) {
	for what, label := range map[string]string{"NUL": "a\x00b", "no UTF-8": "\xff", "too long": strings.Repeat("x", 1025)} {
		c, err := pglock.Open("host=/nonexistent", pglock.Config{Owner: label})
		wantErr(t, what, err, pglock.ErrInvalidOption)
		if c != nil {
			t.Errorf("%s: a client", what)
		}
	}
}
