package pgtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/internal/pgtemp/sandbox"
)

// bouncerConfig is transaction pooling as people run it: what a session set is gone with the transaction, and startup
// parameters that the pooler does not know are refused. Three connections to the server, so that sharing happens.
const bouncerConfig = `[databases]
* = host=%s port=%s

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s
pool_mode = transaction
default_pool_size = 3
max_client_conn = 500
server_login_retry = 1
%s
`

// PgBouncer starts a real PgBouncer in front of the database, with transaction pooling, and returns the superuser's URL
// through it. It knows the roles that can log in when it is started. It ends when the test does. The test is skipped where
// the program is not installed ("pgbouncer" in PGLOCK_TEST_REQUIRE). Settings are further lines of its configuration.
func PgBouncer(t testing.TB, d *Database, settings ...string) (url string) {
	t.Helper()
	d.spoiled.Store(true)
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program, err = exec.LookPath("/usr/sbin/pgbouncer") // Debian's place, not on everybody's PATH
	}
	if err != nil {
		missing(t, "pgbouncer", "no pgbouncer here (apt-get install pgbouncer; brew install pgbouncer)")
	}
	dir, err := sandbox.New("pgbouncer-")
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		if err := dir.Close(); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	for range 5 { // the port may be taken
		if url, err = startBouncer(t, dir, program, d, settings); err == nil {
			return url
		}
	}
	t.Fatalf("pgtest: pgbouncer does not start: %v", err)
	return ""
}

// startBouncer starts the program and waits until it passes connections on.
func startBouncer(t testing.TB, dir *sandbox.Dir, program string, d *Database, settings []string) (string, error) {
	t.Helper()
	to := parsed(d.URL)
	port := 20_000 + rand.IntN(12_000)
	users, config := filepath.Join(dir.Path, "users.txt"), filepath.Join(dir.Path, "pgbouncer.ini")
	writeFor(t, dir, users, knownUsers(t, d))
	writeFor(t, dir, config, fmt.Sprintf(bouncerConfig, to.Hostname(), to.Port(), port, users, strings.Join(settings, "\n")))
	to.Host = fmt.Sprintf("127.0.0.1:%d", port)
	to.RawQuery = "sslmode=disable"

	log, err := os.Create(filepath.Join(dir.Path, "log"))
	if err != nil {
		return "", err
	}
	defer log.Close()
	cmd := exec.Command(program, config)
	cmd.Stdout, cmd.Stderr = log, log
	proc, err := dir.Start(cmd)
	if err != nil {
		return "", err
	}
	if err := awaitBouncer(proc, to.String()); err != nil {
		proc.Quit()
		text, _ := os.ReadFile(log.Name())
		return "", fmt.Errorf("%w. It said:\n%s", err, text)
	}
	return to.String(), nil
}

// awaitBouncer tries until a session comes about. The program tells nobody when it is ready.
func awaitBouncer(proc *sandbox.Proc, url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, url)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-tick.C:
		case <-proc.Done():
			return fmt.Errorf("it ended: %w", proc.Err())
		case <-ctx.Done():
			return err
		}
	}
}

// knownUsers lists the roles that can log in, with the superuser's password if there is one.
func knownUsers(t testing.TB, d *Database) string {
	t.Helper()
	password, _ := parsed(d.URL).User.Password()
	return Query[string](t, d, `SELECT string_agg(format('"%s" "%s"', replace(rolname, '"', '""'), $1::text), E'\n')
		FROM pg_roles WHERE rolcanlogin`, strings.ReplaceAll(password, `"`, `""`)) + "\n"
}

// writeFor makes a file for the user who runs the program.
func writeFor(t testing.TB, dir *sandbox.Dir, path, content string) {
	t.Helper()
	err := os.WriteFile(path, []byte(content), 0o600)
	if err == nil {
		err = dir.Own(path)
	}
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
}
