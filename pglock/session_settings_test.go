package pglock_test

import (
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

func TestTimeZonesAndFormatsOfSessionsChangeNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	holder := open(t, with(t, d.URL, "timezone", "UTC"), pglock.Config{Owner: "utc"})
	take(t, holder, "a", pglock.TTL(30*time.Second), pglock.NoRenewal())
	for what, url := range map[string]string{
		"Auckland":         with(t, d.URL, "timezone", "Pacific/Auckland"),
		"Los Angeles":      with(t, d.URL, "timezone", "America/Los_Angeles"),
		"German dates":     with(t, d.URL, "datestyle", "German"),
		"SQL dates":        with(t, d.URL, "datestyle", "SQL"),
		"interval style":   with(t, d.URL, "intervalstyle", "iso_8601"),
		"few digits":       with(t, d.URL, "extra_float_digits", "-15"),
		"bytea escape":     with(t, d.URL, "bytea_output", "escape"),
		"nonstandard text": with(t, d.URL, "standard_conforming_strings", "off", "backslash_quote", "on"),
	} {
		t.Run(what, func(t *testing.T) {
			c := open(t, url, pglock.Config{})
			held := refused(t, c, "a")
			if truth := left(t, d, "a"); held.Remaining < truth || held.Remaining > truth+5*time.Second {
				t.Errorf("told that %v are left, the database says %v", held.Remaining, truth)
			}
			if ago := time.Since(held.Since); ago < -time.Second || ago > time.Minute {
				t.Errorf("told that it is held since %v", held.Since)
			}
			s, err := c.Inspect(soon(t), "a")
			if err != nil || !s.Held || s.TTL != 30*time.Second || s.Remaining > 30*time.Second || s.Remaining < 10*time.Second || !s.Since.Equal(held.Since) {
				t.Errorf("Inspect = %+v, %v", s, err)
			}
		})
	}
}
