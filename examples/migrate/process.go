package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// A replica is a child process: this very program once more, see beReplica.
type replica struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan string // what it says, after the timeline has it; closed at its end
}

// startReplica starts a replica, whose words go to the timeline. When ctx ends, it is killed.
func (d *director) startReplica(ctx context.Context, name, act string) (*replica, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), replicaVariable+"="+name, urlVariable+"="+d.db.url, actVariable+"="+act)
	cmd.Stderr = os.Stderr
	stdin, errIn := cmd.StdinPipe()
	stdout, errOut := cmd.StdoutPipe()
	if err := errors.Join(errIn, errOut); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r := &replica{name: name, cmd: cmd, stdin: stdin, lines: make(chan string, 100)}
	go func() { // ends with the process
		defer close(r.lines)
		for out := bufio.NewScanner(stdout); out.Scan(); {
			d.say(name, "%s", out.Text())
			r.lines <- out.Text()
		}
	}()
	return r, nil
}

// until waits for the replica to say something that contains one of the words, and returns that word.
func (r *replica) until(words ...string) (string, error) {
	for line := range r.lines {
		for _, word := range words {
			if strings.Contains(line, word) {
				return word, nil
			}
		}
	}
	return "", fmt.Errorf("%s has ended early: %w", r.name, r.cmd.Wait())
}

// kill is kill -9.
func (r *replica) kill() error {
	if err := r.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", r.name, err)
	}
	r.end()
	return nil
}

// finish waits for the end of the replica, and checks how it ended.
func (r *replica) finish(want int) error {
	for range r.lines {
	}
	r.cmd.Wait() //nolint:errcheck // its status says it
	if got := r.cmd.ProcessState.ExitCode(); got != want {
		return fmt.Errorf("%s ended with status %d, not %d", r.name, got, want)
	}
	return nil
}

// end takes the replica away, if it is still there.
func (r *replica) end() {
	if r.cmd.ProcessState != nil {
		return
	}
	r.cmd.Process.Kill() //nolint:errcheck // the only error is that it has ended
	for range r.lines {
	}
	r.cmd.Wait() //nolint:errcheck // killed, as asked
}
