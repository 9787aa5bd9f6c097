package pgtemp

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtemp/sandbox"
)

// A cluster is a data folder and the server on it.
type cluster struct {
	bin      binaries
	dir      *sandbox.Dir
	settings map[string]string
	port     int
	clock    []string // environment that sets the server's clock

	mu     sync.Mutex
	proc   *sandbox.Proc // nil while halted
	frozen bool
}

// startLocal makes a cluster and starts its server.
func startLocal(ctx context.Context, bin binaries, o Options) (*Server, error) {
	c, err := newCluster(bin, settings(o))
	if err != nil {
		return nil, err
	}
	if err := c.init(ctx); err != nil {
		return nil, errors.Join(err, c.dir.Close())
	}
	return c.serve(ctx)
}

func newCluster(bin binaries, settings map[string]string) (*cluster, error) {
	dir, err := sandbox.New("pgtemp-")
	if err != nil {
		return nil, fmt.Errorf("pgtemp: %w", err)
	}
	return &cluster{bin: bin, dir: dir, settings: settings}, nil
}

// settings are what the server is started with: room for many clients, little memory, and as durable as asked.
func settings(o Options) map[string]string {
	durable := "off"
	if o.Durable {
		durable = "on"
	}
	all := map[string]string{
		"fsync":              durable,
		"full_page_writes":   durable,
		"synchronous_commit": durable,

		"max_connections": "200",
		"shared_buffers":  "32MB",
		"max_wal_size":    "256MB",

		"autovacuum_naptime": "10min", // a visit to each of hundreds of databases costs more than it gains them

		// what a standby needs
		"wal_level":       "replica",
		"max_wal_senders": "10",
		"wal_keep_size":   "64MB",

		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": "", // nobody needs one, and its path may be too long
		"log_line_prefix":         "%m [%p] %q%a ",
		"timezone":                "UTC",
	}
	maps.Copy(all, o.Settings)
	return all
}

func (c *cluster) data() string { return filepath.Join(c.dir.Path, "data") }

// prototypes are data folders that initdb made, by the folder of the program: to copy one takes a third of the time. They go
// with this process. Servers made of one have one system identifier.
var prototypes struct {
	sync.Mutex
	of map[string]*cluster
}

// init makes the data folder.
func (c *cluster) init(ctx context.Context) error {
	prototypes.Lock()
	defer prototypes.Unlock()
	p := prototypes.of[c.bin.dir]
	if p == nil {
		var err error
		if p, err = newCluster(c.bin, nil); err != nil {
			return err
		}
		if err := p.initdb(ctx); err != nil {
			return errors.Join(err, p.dir.Close())
		}
		if prototypes.of == nil {
			prototypes.of = map[string]*cluster{}
		}
		prototypes.of[c.bin.dir] = p
	}
	return c.copyData(p.data())
}

// initdb makes a data folder from nothing. C.UTF-8 is not on every system, and C is.
func (c *cluster) initdb(ctx context.Context) error {
	for _, locale := range []string{"C.UTF-8", "C"} {
		cmd := exec.CommandContext(ctx, c.bin.path("initdb"), "-D", c.data(), "-U", "postgres", "-A", "trust",
			"-E", "UTF8", "--locale="+locale, "--no-sync", "--no-instructions")
		cmd.Env = environment()
		out, err := c.dir.Run(cmd)
		switch {
		case err == nil:
			return nil
		case !strings.Contains(out, "locale") || locale == "C":
			return fmt.Errorf("pgtemp: initdb: %w: %s", err, out)
		}
	}
	return nil
}

// environment is ours, less what would change how the server or its messages behave.
func environment() []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "PG") || strings.HasPrefix(v, "LC_") || strings.HasPrefix(v, "LANG")
	})
	return append(env, "LC_ALL=C")
}

// serve starts the server on a free port. Between finding and taking it, somebody else may take it: then on another.
func (c *cluster) serve(ctx context.Context) (*Server, error) {
	for try := 1; ; try++ {
		if err := c.choosePort(); err != nil {
			return nil, errors.Join(err, c.dir.Close())
		}
		err := c.launch(ctx)
		if err == nil {
			return c.server(), nil
		}
		if try == 5 || !strings.Contains(err.Error(), "Address already in use") {
			return nil, errors.Join(err, c.dir.Close())
		}
	}
}

// server is the face of the cluster.
func (c *cluster) server() *Server {
	return &Server{
		base: url.URL{
			Scheme: "postgres", User: url.User("postgres"), Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port)),
			RawQuery: "sslmode=disable",
		},
		how:   fmt.Sprintf("PostgreSQL %s from %s", c.bin.version, c.bin.dir),
		local: c,
		stop:  sync.OnceValue(c.close),
	}
}

// close ends the server and removes everything.
func (c *cluster) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.thaw()
	c.proc = nil
	return c.dir.Close()
}

func (c *cluster) choosePort() (err error) {
	c.port, err = freePort()
	return err
}

// freePort picks a port below those that systems give to outgoing connections: one of these could take it during a restart.
func freePort() (int, error) {
	var err error
	for range 20 {
		port := 20_000 + rand.IntN(12_000)
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("pgtemp: no free port: %w", err)
}

// launch starts the server and waits until it accepts connections. After an error it does not run.
func (c *cluster) launch(ctx context.Context) error {
	log, err := os.OpenFile(c.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("pgtemp: %w", err)
	}
	defer log.Close()
	args := []string{"-D", c.data(), "-p", strconv.Itoa(c.port)}
	for _, name := range slices.Sorted(maps.Keys(c.settings)) {
		args = append(args, "-c", name+"="+c.settings[name])
	}
	cmd := exec.Command(c.bin.path("postgres"), args...) // not CommandContext: ctx bounds the start only
	cmd.Env, cmd.Stdout, cmd.Stderr = append(environment(), c.clock...), log, log
	proc, err := c.dir.Start(cmd)
	if err != nil {
		return fmt.Errorf("pgtemp: %w", err)
	}
	if err := c.awaitReady(ctx, proc); err != nil {
		proc.Quit()
		return fmt.Errorf("pgtemp: start of the server: %w. Its log ends with:\n%s", err, c.logTail())
	}
	c.proc = proc
	return nil
}

// awaitReady waits until the server says so in the last line of its pid file. The first line tells it from the file that a
// crashed predecessor left.
func (c *cluster) awaitReady(ctx context.Context, proc *sandbox.Proc) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-proc.Done():
			return fmt.Errorf("it ended: %w", cmp.Or(proc.Err(), errors.New("exit status 0")))
		case <-tick.C:
		}
		file, _ := os.ReadFile(filepath.Join(c.data(), "postmaster.pid")) // not there yet: not ready
		lines := strings.Split(string(file), "\n")
		if len(lines) > 7 && lines[0] == strconv.Itoa(proc.Pid()) && strings.TrimSpace(lines[7]) == "ready" {
			return nil
		}
	}
}

func (c *cluster) logPath() string { return filepath.Join(c.dir.Path, "server.log") }

const tailBytes = 8 << 10

// logTail returns the last lines of the log.
func (c *cluster) logTail() string {
	f, err := os.Open(c.logPath())
	if err != nil {
		return ""
	}
	defer f.Close()
	cut := false
	if info, err := f.Stat(); err == nil && info.Size() > tailBytes {
		_, err = f.Seek(-tailBytes, io.SeekEnd)
		cut = err == nil
	}
	tail, _ := io.ReadAll(f)
	if _, whole, ok := bytes.Cut(tail, []byte("\n")); ok && cut {
		tail = whole // the first line is a fragment
	}
	return string(tail)
}
