// Package sandbox runs a program in a folder of its own and takes both away when this process ends, however it ends.
//
// A server that a test started must not outlive the test, and neither must its files: not after a panic, a time-out, a ^C
// or a kill -9. No code of ours runs in the last case, and the kernel's help (PR_SET_PDEATHSIG) is Linux's alone, fires
// when a mere thread ends, and leaves the folder. So every sandbox has a watchdog: a /bin/sh in a session of its own that
// reads from a pipe whose other end only this process holds. When this process is gone, the pipe is at its end, and the
// watchdog stops the program and removes the folder. An orderly Close takes the same way, so that way is always tried.
//
// Programs like PostgreSQL refuse to run as root. Where we are root, they run as an unprivileged user that owns the folder.
package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
)

// A Dir is a folder, mode 0700, in which one program at a time runs. Its methods may be called from several goroutines.
type Dir struct {
	Path string

	owner *owner    // who runs the program and owns the folder; nil: we do
	leash *os.File  // our end of the watchdog's pipe
	dog   *exec.Cmd // the watchdog

	mu      sync.Mutex
	running *Proc
	closed  bool
}

// Usable returns nil if New can work here, and else why not.
func Usable() error {
	_, err := unprivileged()
	return err
}

// New makes a folder whose name starts with prefix, and its watchdog.
func New(prefix string) (*Dir, error) {
	who, err := unprivileged()
	if err != nil {
		return nil, err
	}
	path, err := os.MkdirTemp(parent(who), prefix)
	if err != nil {
		return nil, fmt.Errorf("sandbox: make a folder: %w", err)
	}
	d := &Dir{Path: path, owner: who}
	if err := errors.Join(d.Own(path), d.watch()); err != nil {
		return nil, errors.Join(err, os.RemoveAll(path))
	}
	return d, nil
}

// Own gives a file that this process made to the user who runs the program.
func (d *Dir) Own(path string) error {
	if d.owner == nil {
		return nil
	}
	if err := os.Lchown(path, d.owner.uid, d.owner.gid); err != nil {
		return fmt.Errorf("sandbox: give the folder to user %s: %w", d.owner.name, err)
	}
	return nil
}

// watch starts the watchdog.
func (d *Dir) watch() error {
	read, write, err := os.Pipe() // close-on-exec: no other child of ours can keep our end open
	if err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	defer read.Close()
	dog := exec.Command("/bin/sh", "-c", watchdog, "sh", d.Path)
	dog.Stdin, dog.Dir = read, "/" // no stdout or stderr: `go test` waits for whoever holds its own
	d.detach(dog)
	if err := dog.Start(); err != nil {
		return errors.Join(fmt.Errorf("sandbox: start the watchdog: %w", err), write.Close())
	}
	d.leash, d.dog = write, dog
	return nil
}

// Start starts cmd in the folder, as the unprivileged user and in a session of its own, so that a ^C at the terminal
// reaches this process only. It fails while an earlier program still runs.
func (d *Dir) Start(cmd *exec.Cmd) (*Proc, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return nil, errors.New("sandbox: closed")
	case d.running != nil:
		return nil, fmt.Errorf("sandbox: %s still runs", d.running.cmd.Path)
	}
	cmd.Dir = d.Path
	d.detach(cmd)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("sandbox: run %s%s: %w", cmd.Path, d.asWhom(), err)
	}
	d.tell(cmd.Process.Pid)
	p := &Proc{dir: d, cmd: cmd, done: make(chan struct{})}
	d.running = p
	go p.reap()
	return p, nil
}

// Run runs cmd to its end and returns what it printed.
func (d *Dir) Run(cmd *exec.Cmd) (output string, err error) {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	p, err := d.Start(cmd)
	if err != nil {
		return "", err
	}
	<-p.Done()
	return out.String(), p.Err()
}

// Close stops the program, if it still runs, and removes the folder. It waits for both; a second call does nothing.
func (d *Dir) Close() error {
	d.mu.Lock()
	p, again := d.running, d.closed
	d.closed = true
	d.mu.Unlock()
	if again {
		return nil
	}
	if p != nil {
		p.Quit()
	}
	err := errors.Join(d.leash.Close(), d.dog.Wait())
	if rest := os.RemoveAll(d.Path); rest != nil { // nothing to do, unless somebody killed the watchdog
		return fmt.Errorf("sandbox: remove the folder: %w", errors.Join(err, rest))
	}
	return nil
}

// tell lets the watchdog know what it would have to stop; 0 is nothing. It cannot fail while the watchdog lives, and
// without a watchdog there is nobody to tell.
func (d *Dir) tell(pid int) { fmt.Fprintln(d.leash, pid) }

func (d *Dir) asWhom() string {
	if d.owner == nil {
		return ""
	}
	return " as user " + d.owner.name
}
