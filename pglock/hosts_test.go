package pglock_test

import (
	"net"
	"net/url"
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// silentHost accepts connections and never says a word, like a machine that hangs.
func silentHost(t *testing.T) (address string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0") // the system accepts for it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() }) //nolint:errcheck // it listened to nobody
	return ln.Addr().String()
}

// A URL may name several hosts. One that is not there, or there and silent, costs time and no lock.
func TestTheNextHostIsAskedWhenOneIsGoneOrSilent(t *testing.T) {
	t.Parallel()
	for what, first := range map[string]func(t *testing.T) string{
		"silent": silentHost,
		"gone":   func(*testing.T) string { return "127.0.0.1:1" },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			u, err := url.Parse(with(t, d.URL, "target_session_attrs", "read-write"))
			if err != nil {
				t.Fatal(err)
			}
			u.Host = first(t) + "," + u.Host
			take(t, open(t, u.String(), pglock.Config{}), "a")
		})
	}
}
