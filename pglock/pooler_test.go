package pglock_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtemp/sandbox"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pooler starts PgBouncer in transaction mode before a database, with few connections and whatever settings, and returns the
// database's URL through it.
func pooler(t *testing.T, d *pgtest.Database, settings ...string) string {
	t.Helper()
	bin, err := exec.LookPath("pgbouncer")
	if err != nil {
		if slices.Contains(strings.Split(os.Getenv("PGLOCK_TEST_REQUIRE"), ","), "pgbouncer") {
			t.Fatal(err)
		}
		t.Skip("PgBouncer is not installed (apt-get install pgbouncer)")
	}
	server, err := pgx.ParseConfig(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := ln.Addr().(*net.TCPAddr)
	ln.Close() //nolint:errcheck // PgBouncer takes the port
	dir, err := sandbox.New("pgbouncer-")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { dir.Close() }) //nolint:errcheck // it is thrown away
	ini := filepath.Join(dir.Path, "pgbouncer.ini")
	password := ""
	if server.Password != "" {
		password = " password='" + strings.ReplaceAll(server.Password, "'", "''") + "'"
	}
	text := fmt.Sprintf("[databases]\n%s = host=%s port=%d user=%s%s\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %d\nunix_socket_dir =\n"+
		"auth_type = any\npool_mode = transaction\ndefault_pool_size = 3\nmax_client_conn = 200\nserver_login_retry = 1\n%s\n",
		d.Name, server.Host, server.Port, server.User, password, address.Port, strings.Join(settings, "\n"))
	if err := os.WriteFile(ini, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, ini)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	proc, err := dir.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	accepts := async(func() bool {
		for {
			conn, err := net.Dial("tcp", address.String())
			if err == nil {
				conn.Close() //nolint:errcheck // only to see
				return true
			}
			select {
			case <-proc.Done():
				return false
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	if !happens(t, "PgBouncer accepts", accepts) {
		t.Fatalf("PgBouncer ended: %v\n%s", proc.Err(), &log)
	}
	return strings.Replace(d.URL, fmt.Sprintf("%s:%d", server.Host, server.Port), address.String(), 1)
}

var poolers = map[string][]string{
	"refuses parameters": nil,
	"ignores parameters": {"ignore_startup_parameters = default_transaction_isolation,default_transaction_read_only,statement_timeout,lock_timeout,idle_session_timeout"},
}

func TestLocksWorkBehindATransactionPooler(t *testing.T) {
	t.Parallel()
	for what, settings := range poolers {
		for role, setup := range map[string]string{
			"":              ``,
			", strict role": `ALTER DATABASE %s SET default_transaction_isolation = 'serializable'; ALTER DATABASE %[1]s SET statement_timeout = '200ms'; ALTER DATABASE %[1]s SET datestyle = 'German'`,
		} {
			t.Run(what+role, func(t *testing.T) {
				t.Parallel()
				const clients, rounds = 8, 25
				d := pgtest.DB(t)
				if setup != "" {
					d.Exec(t, fmt.Sprintf(setup, d.Name))
				}
				url := pooler(t, d, settings...)
				var all sync.WaitGroup
				var inside sync.Mutex
				ctx := slow(t)
				for i := range clients {
					pool, err := pgxpool.New(t.Context(), url) // pgx's default settings
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(pool.Close)
					c, err := pglock.New(pool, pglock.Config{})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { wantErr(t, "Close", c.Close(soon(t)), nil) })
					name := []string{"shared", fmt.Sprint("own ", i)}[i%2]
					all.Go(func() {
						for range rounds {
							l, err := c.Acquire(ctx, name)
							if err != nil {
								t.Errorf("Acquire: %v", err)
								return
							}
							if name == "shared" && !inside.TryLock() {
								t.Error("two holders")
							}
							wantErr(t, "Renew", l.Renew(ctx), nil)
							if name == "shared" {
								inside.Unlock()
							}
							wantErr(t, "Release", l.Release(ctx), nil)
						}
						if s, err := c.Inspect(ctx, name); err != nil || s.Name != name || s.Token == 0 {
							t.Errorf("Inspect = %+v, %v", s, err)
						}
					})
				}
				all.Wait()
				if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pglock.leases WHERE expires_at > clock_timestamp()`); n != 0 {
					t.Errorf("%d locks are left", n)
				}
				if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`); n != 0 {
					t.Errorf("%d advisory locks are left", n)
				}
			})
		}
	}
}
