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

// A worker is a child process: this very program once more, see beWorker.
type worker struct {
	*exec.Cmd
	name string
	in   io.WriteCloser
	out  *bufio.Scanner
	kill context.CancelFunc
}

// startWorker starts a worker. When ctx ends, it is killed, frozen or not.
func (d *director) startWorker(ctx context.Context, name string) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ctx, kill := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, self, fmt.Sprintf("-fence=%t", d.fenced))
	cmd.Env = append(os.Environ(), workerVariable+"="+name, urlVariable+"="+d.url)
	cmd.Stderr = os.Stderr
	// In a process group of its own a ^C does not reach it, and the kernel ends it if the director is killed while it is frozen.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, errIn := cmd.StdinPipe()
	out, errOut := cmd.StdoutPipe()
	if err := errors.Join(errIn, errOut, cmd.Start()); err != nil {
		kill()
		return nil, err
	}
	return &worker{cmd, name, in, bufio.NewScanner(out), kill}, nil
}

// hear passes on what a worker says, up to a line that begins with word, and says whether there was one before its end.
func (d *director) hear(w *worker, word string) bool {
	for w.out.Scan() {
		d.tell(w.name, "%s", w.out.Text())
		if strings.HasPrefix(w.out.Text(), word) {
			return true
		}
	}
	return false
}

// payDay lets a worker pay, waits for its end, and answers whether the fence has refused it.
func (d *director) payDay(w *worker) (refused bool, err error) {
	fmt.Fprintln(w.in, "pay") // if it is not there to read it, Wait says why
	for d.hear(w, "") {
	}
	err = w.Wait()
	switch {
	case w.ProcessState.ExitCode() == statusRefused:
		return true, nil
	case err != nil:
		return false, fmt.Errorf("%s: %w", w.name, err)
	}
	return false, nil
}

// end takes a worker away, if it is still there.
func (w *worker) end() {
	w.kill()
	if w.ProcessState == nil {
		w.Wait() //nolint:errcheck // killed, as asked
	}
}
