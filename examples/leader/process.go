package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// A node is a child process: this very program once more, see beNode.
type node struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	said  chan struct{} // closed when it says no more
}

// A word is what a node has said.
type word struct {
	node *node
	text string
}

// startNode starts a node, whose words go to the timeline and to the director. When ctx ends, it is killed.
func (d *director) startNode(ctx context.Context, name string) (*node, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), nodeVariable+"="+name, urlVariable+"="+d.db.url)
	if !d.elect {
		cmd.Env = append(cmd.Env, usurpVariable+"=1")
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
	n := &node{name: name, cmd: cmd, stdin: stdin, said: make(chan struct{})}
	go func() { // ends with the process
		defer close(n.said)
		for out := bufio.NewScanner(stdout); out.Scan(); {
			d.say(name, "%s", out.Text())
			d.words <- word{n, out.Text()}
		}
	}()
	return n, nil
}

// tell gives the node something to do.
func (n *node) tell(what string) error {
	_, err := fmt.Fprintln(n.stdin, what)
	return err
}

// kill is kill -9.
func (n *node) kill() error {
	if err := n.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", n.name, err)
	}
	n.end()
	return nil
}

// finish lets the node end, and checks that it ends well.
func (n *node) finish() error {
	n.stdin.Close()
	<-n.said
	if err := n.cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}
	return nil
}

// end takes the node away, if it is still there.
func (n *node) end() {
	if n.cmd.ProcessState != nil {
		return
	}
	n.cmd.Process.Kill() //nolint:errcheck // the only error is that it has ended
	<-n.said
	n.cmd.Wait() //nolint:errcheck // killed, as asked
}
