package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencedlock/fencedlock/internal/pgtemp/sandbox"
	"go.uber.org/zap"
)

// The names of the servers.
const (
	onPostgres  = "PostgreSQL"
	onRedis     = "Redis"
	onRedisAOF  = "Redis AOF always"
	onEtcd      = "etcd"
	onZooKeeper = "ZooKeeper"
)

// A server was started for this run and is gone with it, however it ends: see package sandbox. It listens on 127.0.0.1 only, and
// its folder is on the file system of the others.
type server struct {
	name, version, settings string
	url                     string
	stop                    func()
	postgres                *postgres // nil for the others
}

// servers are how to start each. An error of start that matches exec.ErrNotFound says what to install.
var servers = []struct {
	name  string
	start func(context.Context) (*server, error)
}{
	{onPostgres, startPostgres},
	{onRedis, func(ctx context.Context) (*server, error) {
		return startRedis(ctx, onRedis, "save=\"\" appendonly=no: a crash loses everything", "--appendonly", "no")
	}},
	{onRedisAOF, func(ctx context.Context) (*server, error) {
		return startRedis(ctx, onRedisAOF, "save=\"\" appendonly=yes appendfsync=always", "--appendonly", "yes", "--appendfsync", "always")
	}},
	{onEtcd, startEtcd},
	{onZooKeeper, startZooKeeper},
}

func startRedis(ctx context.Context, name, settings string, args ...string) (*server, error) {
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("%w: install redis-server", exec.ErrNotFound)
	}
	port := freePort()
	args = append(args, "--bind", "127.0.0.1", "--port", port, "--save", "")
	s := &server{name: name, version: firstLine(bin, "--version", `v=([0-9.]+)`), settings: settings, url: "redis://127.0.0.1:" + port}
	return s, s.launch(ctx, nil, exec.Command(bin, args...), func(ctx context.Context) error {
		c, err := openRedis(s.url)
		if err != nil {
			return err
		}
		defer c.Close() //nolint:errcheck // it was only asked whether it is there
		return c.Ping(ctx).Err()
	})
}

func startEtcd(ctx context.Context) (*server, error) {
	bin, err := exec.LookPath("etcd")
	if err != nil {
		return nil, fmt.Errorf("%w: install etcd-server", exec.ErrNotFound)
	}
	client, peer := "http://127.0.0.1:"+freePort(), "http://127.0.0.1:"+freePort()
	s := &server{
		name: onEtcd, version: firstLine(bin, "--version", `Version: ([0-9.]+)`), url: client,
		settings: "one node, its defaults: fsync of every entry",
	}
	cmd := exec.Command(bin, "--data-dir", "data", "--logger", "zap", "--log-level", "error",
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	return s, s.launch(ctx, nil, cmd, func(ctx context.Context) error {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{client}, Logger: zap.NewNop()})
		if err != nil {
			return err
		}
		defer c.Close() //nolint:errcheck // it was only asked whether it is there
		_, err = c.Get(ctx, "ready")
		return err
	})
}

const zookeeperJar = "/usr/share/java/zookeeper.jar" // where Debian's package has it, with a class path in its manifest

// startZooKeeper lets sessions be as short as a second, for the question of the crash.
func startZooKeeper(ctx context.Context) (*server, error) {
	java, err := exec.LookPath("java")
	if _, there := os.Stat(zookeeperJar); err != nil || there != nil {
		return nil, fmt.Errorf("%w: install zookeeper and a JRE (Debian's packages; %s and java are looked for)", exec.ErrNotFound, zookeeperJar)
	}
	version := "of unknown version"
	if named, _ := filepath.Glob(strings.TrimSuffix(zookeeperJar, ".jar") + "-[0-9]*.jar"); len(named) > 0 {
		version = strings.TrimSuffix(strings.TrimPrefix(filepath.Base(named[0]), "zookeeper-"), ".jar")
	}
	port := freePort()
	s := &server{
		name: onZooKeeper, version: version, url: "127.0.0.1:" + port,
		settings: "one node, its defaults: forceSync=yes; tickTime=500",
	}
	config := map[string]string{"zoo.cfg": "tickTime=500\ndataDir=data\nclientPortAddress=127.0.0.1\nclientPort=" + port +
		"\nmaxClientCnxns=0\nmaxSessionTimeout=60000\nadmin.enableServer=false\n"}
	// -Xrs: SIGQUIT, with which a sandbox ends its program, is not to print a thread dump.
	cmd := exec.Command(java, "-Xrs", "-Xmx512m", "-cp", zookeeperJar, "org.apache.zookeeper.server.ZooKeeperServerMain", "zoo.cfg")
	return s, s.launch(ctx, config, cmd, func(ctx context.Context) error {
		c, err := zookeeper.Open(ctx, s.url, 10*time.Second)
		if err != nil {
			return err
		}
		return c.Close()
	})
}

// launch starts the program in a folder of its own and waits until it answers.
func (s *server) launch(ctx context.Context, files map[string]string, cmd *exec.Cmd, ready func(context.Context) error) error {
	dir, err := sandbox.New("bench-")
	if err != nil {
		return err
	}
	s.stop = func() { dir.Close() } //nolint:errcheck // the folder is a throw-away
	for name, text := range files {
		path := filepath.Join(dir.Path, name)
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), dir.Own(path)); err != nil {
			s.stop()
			return err
		}
	}
	path := filepath.Join(dir.Path, "server.log")
	log, err := os.Create(path)
	if err != nil {
		s.stop()
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	proc, err := dir.Start(cmd)
	if err != nil {
		s.stop()
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		try, done := context.WithTimeout(ctx, 2*time.Second)
		err := ready(try)
		done()
		switch {
		case err == nil:
			return nil
		case proc.Err() != nil, ctx.Err() != nil:
			tail, _ := os.ReadFile(path)
			s.stop()
			return fmt.Errorf("%s does not answer: %w; its log ends with: %s", s.name, errors.Join(err, proc.Err()), tail[max(0, len(tail)-500):])
		}
		sleep(ctx, 50*time.Millisecond) //nolint:errcheck // the loop looks at ctx
	}
}

func freePort() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "0" // the server will say what is wrong
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// firstLine is what a program says of itself.
func firstLine(bin, flag, pattern string) string {
	out, err := exec.Command(bin, flag).Output()
	if m := regexp.MustCompile(pattern).FindStringSubmatch(string(out)); err == nil && m != nil {
		return m[1]
	}
	return "of unknown version"
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// oneLine is an error for a table.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
