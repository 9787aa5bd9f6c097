// Package pgtest gives tests a private PostgreSQL database each, and ways to make it fail: a proxy that cuts, stalls and
// loses replies, a server of one's own that crashes, a standby, a pooler.
//
// The tests of a package share one server (see package pgtemp for which), started when the first test asks for a
// database. Every package that uses this one says
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
// A test that needs what the machine does not have is skipped with what to install. PGLOCK_TEST_REQUIRE, a list like
// "pgbouncer,docker,local,faketime,pg_dump", makes it fail instead, so that CI cannot skip in silence.
package pgtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
)

// patience bounds every wait of this package. It is long because it ends only tests that fail anyway.
const patience = 20 * time.Second

// ryuk keeps testcontainers' link to the container that cleans up after this process, until its end.
const ryuk = "github.com/testcontainers/testcontainers-go.(*Reaper).connect.func1"

// Main runs the tests of a package, stops the shared server, fails on goroutines that are left, and exits.
//
// Tests of a database wait most of their time, so at least six run at once, also where there are fewer
// processors.
func Main(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) && runtime.GOMAXPROCS(0) < 6 {
		flag.Set("test.parallel", "6") //nolint:errcheck // it is a number
	}
	code := m.Run()
	if err := shared.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		code = max(code, 1)
	}
	if code == 0 { // after a failed test, leaked goroutines are no news
		if err := goleak.Find(goleak.IgnoreAnyFunction(ryuk)); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// shared is the server of this package's tests, and the migrated database on it that DB copies.
var shared sharedServer

type sharedServer struct {
	mu          sync.Mutex
	server      *pgtemp.Server
	template    string
	serverErr   error
	templateErr error
	admin       session // to the server's own database
	idle        idle
}

// get starts the server when it is needed first. What failed once is not tried again: every test would wait as long.
func (s *sharedServer) get(t testing.TB) *pgtemp.Server {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil && s.serverErr == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute) // a container may have to be fetched
		defer cancel()
		s.server, s.serverErr = pgtemp.Start(ctx, pgtemp.Options{})
		if s.serverErr == nil {
			s.admin.url, s.admin.queues = s.server.URL("postgres"), true
		}
	}
	if s.serverErr != nil {
		t.Fatal(s.serverErr)
	}
	return s.server
}

// migrated makes the template when it is needed first, on the server that is there by then.
func (s *sharedServer) migrated() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.template == "" {
		s.template = freshName("template")
		s.templateErr = newMigrated(s.server, s.template)
	}
	return s.template, s.templateErr
}

// stop ends the server. The template is dropped first, for a server that goes on.
func (s *sharedServer) stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		return nil
	}
	err := s.idle.close()
	if s.template != "" && !s.server.Local() {
		err = errors.Join(err, s.admin.do(drop(s.template)))
	}
	s.admin.close()
	return errors.Join(err, s.server.Stop())
}

// missing skips the test, or fails it where PGLOCK_TEST_REQUIRE names the part that is not there.
func missing(t testing.TB, part, why string) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("PGLOCK_TEST_REQUIRE"), ","), part) {
		t.Fatalf("%s (PGLOCK_TEST_REQUIRE asks for %q)", why, part)
	}
	t.Skip(why)
}
