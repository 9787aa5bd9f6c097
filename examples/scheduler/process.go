package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// A replica is a child process: this very program once more, see beReplica.
type replica struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	said  chan struct{} // closed when it says no more
}

// A word is what a replica has said.
type word struct {
	replica *replica
	text    string
}

// startReplica starts a replica, whose words go to the timeline and to the director. When ctx ends, it is killed.
func (d *director) startReplica(ctx context.Context, name string, by time.Duration) (*replica, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), replicaVariable+"="+name, urlVariable+"="+d.db.url, clockVariable+"="+by.String())
	if !d.lock {
		cmd.Env = append(cmd.Env, unlockedVariable+"=1")
	}
	cmd.Stderr = os.Stderr
	stdin, errIn := cmd.StdinPipe()
	stdout, errOut := cmd.StdoutPipe()
	if err := errors.Join(errIn, errOut); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r := &replica{name: name, cmd: cmd, stdin: stdin, said: make(chan struct{})}
	go func() { // ends with the process
		defer close(r.said)
		for out := bufio.NewScanner(stdout); out.Scan(); {
			d.say(name, "%s", out.Text())
			d.words <- word{r, out.Text()}
		}
	}()
	return r, nil
}

// kill is kill -9.
func (r *replica) kill() error {
	if err := r.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", r.name, err)
	}
	r.end()
	return nil
}

// finish lets the replica end, and checks that it ends well.
func (r *replica) finish() error {
	r.stdin.Close()
	<-r.said
	if err := r.cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w", r.name, err)
	}
	return nil
}

// end takes the replica away, if it is still there.
func (r *replica) end() {
	if r.cmd.ProcessState != nil {
		return
	}
	r.cmd.Process.Kill() //nolint:errcheck // the only error is that it has ended
	<-r.said
	r.cmd.Wait() //nolint:errcheck // killed, as asked
}
