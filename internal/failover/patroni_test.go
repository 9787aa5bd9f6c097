//go:build linux

package failover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"text/template"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtemp/sandbox"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/migrations"
)

const (
	patroniCap   = 12 * time.Second // a failover takes six to ten: a shorter lease would be over before the next primary is there
	patroniNodes = 3
	installThem  = "apt-get install patroni python3-etcd python3-psycopg2 etcd-server postgresql"
)

// Patroni, etcd and three servers: the leader dies with a tail of its log that no standby has, the clients go on by
// themselves, and no lock was granted twice. Only in the long mode, and where Debian's packages of both are installed.
func TestFailoverUnderPatroni(t *testing.T) {
	if pgtest.Rounds(0, 1) == 0 {
		t.Skip("runs under PGLOCK_LONG=1")
	}
	pgtest.NeedPrograms(t, "patroni", installThem, "patroni", "etcd")
	p := startPatroni(t)
	leader := p.settled(t)

	pool, err := pgxpool.New(t.Context(), p.url())
	do(t, "pool", err)
	t.Cleanup(pool.Close)
	do(t, "Up", migrations.Up(soon(t), pool, migrations.Cap(patroniCap)))
	p.settled(t)
	l := startLoad(t, p.url(), migrations.DefaultSchema, patroniCap)
	l.grants(20)
	lost := p.loseLeader(t, leader, func() { l.grants(5) })
	died := time.Now()
	l.grants(5)
	t.Logf("%s died; granted again after %v", lost.name, time.Since(died).Round(100*time.Millisecond))
	l.grants(10)

	r := l.found()
	t.Log(kinds(r))
	if err := r.Err(); err != nil {
		t.Error(err)
	}
	var bumps int
	var other bool
	do(t, "guard", pool.QueryRow(soon(t), `SELECT bumps, inet_server_port() <> $1 FROM pglock.guard`, lost.port).Scan(&bumps, &other))
	if bumps == 0 || !other {
		t.Errorf("no failover: the guard has seen %d, on another server: %t", bumps, other)
	}
}

// A patroni is the whole of it: etcd, and the nodes.
type patroni struct {
	nodes []*patroniNode
}

// A patroniNode is a patroni and the server that it runs.
type patroniNode struct {
	name       string
	dir        *sandbox.Dir
	port, rest int
}

func (p *patroni) url() string {
	var hosts []string
	for _, n := range p.nodes {
		hosts = append(hosts, fmt.Sprintf("127.0.0.1:%d", n.port))
	}
	return "postgres://postgres@" + strings.Join(hosts, ",") + "/postgres?sslmode=disable&connect_timeout=1&target_session_attrs=read-write"
}

func startPatroni(t *testing.T) *patroni {
	t.Helper()
	rewind := "/usr/lib/postgresql/bin/pg_rewind"
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/pg_rewind"); len(found) > 0 { // the pattern is right
		rewind = slices.Max(found)
	}
	pgtest.NeedPrograms(t, "patroni", installThem, rewind)
	ports := freePorts(t, 2+2*patroniNodes)
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	program(t, newDir(t), "exec etcd --data-dir etcd --listen-client-urls $0 --advertise-client-urls $0 --listen-peer-urls $1 "+
		"--initial-advertise-peer-urls $1 --initial-cluster default=$1", client, peer)
	p := &patroni{}
	for i := range patroniNodes {
		n := &patroniNode{name: fmt.Sprintf("node%d", i), dir: newDir(t), port: ports[2+2*i], rest: ports[3+2*i]}
		file := filepath.Join(n.dir.Path, "patroni.yml")
		var b strings.Builder
		do(t, "patroni.yml", patroniYML.Execute(&b, map[string]any{
			"name": n.name, "rest": n.rest, "etcd": ports[0], "port": n.port, "dir": n.dir.Path, "bin": filepath.Dir(rewind),
		}))
		do(t, "patroni.yml", os.WriteFile(file, []byte(b.String()), 0o600))
		do(t, "patroni.yml", n.dir.Own(file))
		// Patroni stops its server when it is asked to end by SIGTERM.
		program(t, n.dir, `patroni patroni.yml & echo $! >patroni.pid; trap 'kill -TERM $!' QUIT TERM; while kill -0 $! 2>/dev/null; do wait $!; done`)
		p.nodes = append(p.nodes, n)
	}
	return p
}

// settled waits until there is a leader that both others follow.
func (p *patroni) settled(t *testing.T) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Minute, errors.New("no leader with all standbys for two minutes"))
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, p.url())
		for followers := 0; err == nil; {
			if err = conn.QueryRow(ctx, `SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'`).Scan(&followers); followers == patroniNodes-1 {
				t.Cleanup(func() { _ = conn.Close(context.Background()) }) // its server may be gone
				return conn
			}
			err = errors.Join(err, pause(ctx))
		}
		if err := pause(ctx); err != nil {
			for _, n := range p.nodes {
				log, _ := os.ReadFile(filepath.Join(n.dir.Path, "log"))
				t.Logf("%s:\n%s", n.name, log[max(0, len(log)-2000):])
			}
			t.Fatal(err)
		}
	}
}

func pause(ctx context.Context) error {
	select {
	case <-time.After(100 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// loseLeader takes the leader's machine away, after a time in which its standbys got nothing of what it did.
func (p *patroni) loseLeader(t *testing.T, conn *pgx.Conn, unseen func()) *patroniNode {
	t.Helper()
	var port int
	do(t, "port", conn.QueryRow(soon(t), `SELECT inet_server_port()`).Scan(&port))
	n := p.nodes[slices.IndexFunc(p.nodes, func(n *patroniNode) bool { return n.port == port })]
	rows, err := conn.Query(soon(t), `SELECT pid FROM pg_stat_replication`)
	do(t, "senders", err)
	senders, err := pgx.CollectRows(rows, pgx.RowTo[int])
	do(t, "senders", err)
	for _, pid := range senders {
		do(t, "stop a sender", syscall.Kill(pid, syscall.SIGSTOP))
	}
	unseen()
	do(t, "kill patroni", syscall.Kill(pidIn(t, n, "patroni.pid"), syscall.SIGKILL)) // it would start the server again
	n.killServer(t)
	return n
}

// killServer kills every process of the server, first of all those that would start others.
func (n *patroniNode) killServer(t *testing.T) {
	t.Helper()
	postmaster := pidIn(t, n, "data/postmaster.pid")
	do(t, "stop the postmaster", syscall.Kill(postmaster, syscall.SIGSTOP))
	table, err := exec.Command("ps", "-o", "pid=", "--ppid", strconv.Itoa(postmaster)).Output()
	do(t, "ps", err)
	for _, pid := range strings.Fields(string(table)) {
		child, err := strconv.Atoi(pid)
		do(t, "ps", err)
		_ = syscall.Kill(child, syscall.SIGKILL) // fails if it has ended since
	}
	do(t, "kill the postmaster", syscall.Kill(postmaster, syscall.SIGKILL))
}

func pidIn(t *testing.T, n *patroniNode, file string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(n.dir.Path, file))
	do(t, file, err)
	pid, err := strconv.Atoi(strings.Fields(string(text))[0])
	do(t, file, err)
	return pid
}

func newDir(t *testing.T) *sandbox.Dir {
	t.Helper()
	d, err := sandbox.New("patroni-")
	do(t, "sandbox", err)
	t.Cleanup(func() { do(t, "sandbox", d.Close()) })
	return d
}

// program starts a shell script, which has args as $0, $1 and so on, and logs to a file.
func program(t *testing.T, d *sandbox.Dir, script string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(d.Path, "log"))
	do(t, "log", err)
	defer log.Close()
	cmd := exec.Command("/bin/sh", append([]string{"-c", script}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "HOME="+d.Path, "LC_ALL=C.UTF-8")
	_, err = d.Start(cmd)
	do(t, "start", err)
}

// freePorts finds ports that nobody listens on.
func freePorts(t *testing.T, n int) (ports []int) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		do(t, "listen", err)
		defer l.Close() // not before all are found: the next would be the same
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

var patroniYML = template.Must(template.New("patroni.yml").Parse(`
scope: test
name: {{.name}}
restapi: {listen: '127.0.0.1:{{.rest}}', connect_address: '127.0.0.1:{{.rest}}'}
etcd3: {host: '127.0.0.1:{{.etcd}}'}
bootstrap:
  dcs:
    ttl: 6
    loop_wait: 1
    retry_timeout: 2
    postgresql:
      use_pg_rewind: true
      parameters: {shared_buffers: 32MB, max_connections: 60, wal_log_hints: 'on', fsync: 'off'}
  initdb: [{encoding: UTF8}, {locale: C}, {auth: trust}]
postgresql:
  listen: 127.0.0.1:{{.port}}
  connect_address: 127.0.0.1:{{.port}}
  data_dir: {{.dir}}/data
  bin_dir: {{.bin}}
  pgpass: {{.dir}}/pgpass
  authentication:
    superuser: {username: postgres, password: x}
    replication: {username: postgres, password: x}
    rewind: {username: postgres, password: x}
  pg_hba: ['host all all 127.0.0.1/32 trust', 'host replication all 127.0.0.1/32 trust', 'local all all trust']
  parameters: {unix_socket_directories: '{{.dir}}'}
`))
