//go:build unix

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
	"syscall"
)

// errRefused is how a worker ends whose write the database has refused.
var errRefused = errors.New("the database refused its write")

// A worker is a child process: this very program once more, see beWorker.
type worker struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan string // what it says, after the timeline has it; closed at its end
}

// startWorker starts a worker, whose words go to the timeline. When ctx ends, it is killed, frozen or not.
func (d *director) startWorker(ctx context.Context, name string) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, fmt.Sprintf("-fence=%t", d.fenced))
	cmd.Env = append(os.Environ(), workerVariable+"="+name, urlVariable+"="+d.db.url)
	cmd.Stderr = os.Stderr
	// A process group of its own keeps a ^C away from it, and has a use when the director is killed: the kernel wakes and ends
	// the stopped processes of a group that nobody looks after any more.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, errIn := cmd.StdinPipe()
	stdout, errOut := cmd.StdoutPipe()
	if err := errors.Join(errIn, errOut); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	w := &worker{name: name, cmd: cmd, stdin: stdin, lines: make(chan string, 16)}
	go func() { // ends with the process
		defer close(w.lines)
		for out := bufio.NewScanner(stdout); out.Scan(); {
			d.say(name, "%s", out.Text())
			w.lines <- out.Text()
		}
	}()
	return w, nil
}

// until waits for the worker to say something that begins with word.
func (w *worker) until(word string) error {
	for line := range w.lines {
		if strings.HasPrefix(line, word) {
			return nil
		}
	}
	return fmt.Errorf("%s has ended early: %w", w.name, w.cmd.Wait())
}

func (w *worker) signal(s syscall.Signal) error {
	if err := w.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("%v for %s: %w", s, w.name, err)
	}
	return nil
}

// finish gives the worker its total and waits for its end.
func (w *worker) finish(total int) error {
	fmt.Fprintln(w.stdin, total) // if it is not there to read it, Wait says why
	for range w.lines {
	}
	err := w.cmd.Wait()
	switch {
	case err == nil:
		return nil
	case w.cmd.ProcessState.ExitCode() == statusRefused:
		return errRefused
	}
	return fmt.Errorf("%s: %w", w.name, err)
}

// end takes the worker away, if it is still there.
func (w *worker) end() {
	if w == nil || w.cmd.ProcessState != nil {
		return
	}
	w.cmd.Process.Kill() //nolint:errcheck // the only error is that it has ended
	for range w.lines {
	}
	w.cmd.Wait() //nolint:errcheck // killed, as asked
}
