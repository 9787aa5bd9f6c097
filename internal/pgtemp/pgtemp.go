// Package pgtemp gives an example or a test a PostgreSQL to run against, with nothing to set up first.
//
// Start takes the first of these that there is: the server named by PGLOCK_TEST_URL; a throw-away server started from
// local binaries; a container. DATABASE_URL is never looked at, so that an example cannot fill a database that happens to
// be in the environment.
//
// A server from local binaries is gone, with its folder, when this process has ended, however it ended. It is the kind
// that can be crashed, restarted, frozen and copied to a standby; the others belong to somebody else or are slow.
//
// The environment:
//
//	PGLOCK_TEST_URL       URL of a superuser on a server that tests may create databases on
//	PGLOCK_TEST_BIN       folder with the binaries (initdb, postgres) to start a server from
//	PGLOCK_TEST_IMAGE     image of the container, default postgres:17-alpine
//	PGLOCK_TEST_FAKETIME  the library libfaketime, for servers with another clock, where it is in no usual place
package pgtemp

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
)

// Options says what the server has to be like. The zero value is a fast server that may lose commits when it crashes.
type Options struct {
	// Settings are server settings (postgresql.conf) beyond ours. Refused together with PGLOCK_TEST_URL, unless Fresh
	// is set: that server has the settings it has.
	Settings map[string]string

	// Durable keeps fsync, full_page_writes and synchronous_commit on. A server from PGLOCK_TEST_URL is as durable as it is.
	Durable bool

	// Fresh asks for a server of one's own, never PGLOCK_TEST_URL: for a caller who crashes or restarts it.
	Fresh bool
}

// A Server is a running PostgreSQL.
type Server struct {
	base  url.URL // of a superuser; the database is filled in
	how   string
	local *cluster // nil if it was not started from local binaries
	stop  func() error
}

// Start returns a running server that accepts connections. It blocks while the server starts: half a second for local
// binaries, longer for a container. ctx bounds the start only. After an error nothing is left running.
func Start(ctx context.Context, o Options) (*Server, error) {
	if given := os.Getenv("PGLOCK_TEST_URL"); given != "" && !o.Fresh {
		return borrow(given, o)
	}
	bin, err := findBinaries(ctx)
	if err == nil {
		return startLocal(ctx, bin, o)
	}
	if os.Getenv("PGLOCK_TEST_BIN") != "" {
		return nil, err // who names a folder means that folder
	}
	s, noContainer := startContainer(ctx, o)
	if noContainer == nil {
		return s, nil
	}
	return nil, fmt.Errorf("pgtemp: no PostgreSQL to run against. Install the server (Debian, Ubuntu: apt-get install postgresql; "+
		"macOS: brew install postgresql@17), or start Docker, or set PGLOCK_TEST_URL to the URL of a superuser on a server that may be "+
		"filled with test databases.\n- local binaries: %w\n- container: %w", err, noContainer)
}

// CheckLocal returns nil if Start would, with Options.Fresh, start a server from local binaries, and else why not.
func CheckLocal(ctx context.Context) error {
	_, err := findBinaries(ctx)
	return err
}

// borrow uses somebody else's server.
func borrow(given string, o Options) (*Server, error) {
	if len(o.Settings) > 0 {
		return nil, errors.New("pgtemp: the server of PGLOCK_TEST_URL cannot be given settings: set Options.Fresh to start another")
	}
	base, err := url.Parse(given)
	if err != nil || (base.Scheme != "postgres" && base.Scheme != "postgresql") || base.Host == "" {
		return nil, errors.New("pgtemp: PGLOCK_TEST_URL must look like postgres://user:password@host:port/database")
	}
	return &Server{base: *base, how: "PGLOCK_TEST_URL", stop: func() error { return nil }}, nil
}

// URL returns the connection string of a superuser for a database; "postgres" is always there.
func (s *Server) URL(database string) string {
	u := s.base
	u.Path = "/" + database
	return u.String()
}

// How says in one line, for people, what the server is.
func (s *Server) How() string { return s.how }

// Local reports whether the server was started from local binaries, and so can be halted, frozen and copied.
func (s *Server) Local() bool { return s.local != nil }

// Log returns the end of the server's log, and nothing for a server that was not started from local binaries.
func (s *Server) Log() string {
	if s.local == nil {
		return ""
	}
	return s.local.logTail()
}

// Stop ends the server at once, without a checkpoint, and removes its files; it does nothing to a server from
// PGLOCK_TEST_URL. It blocks until both are gone. Further calls return what the first one did.
func (s *Server) Stop() error { return s.stop() }
