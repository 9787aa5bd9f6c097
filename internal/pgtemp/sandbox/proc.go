package sandbox

import (
	"os"
	"os/exec"
	"syscall"
	"time"
)

// A Proc is a program that was started in a Dir.
type Proc struct {
	dir  *Dir
	cmd  *exec.Cmd
	done chan struct{}
	err  error // written before done is closed
}

// reap is the goroutine that waits for the program; Dir.Close joins it through done.
func (p *Proc) reap() {
	p.err = p.cmd.Wait()
	p.dir.mu.Lock()
	p.dir.tell(0) // the number may belong to somebody else from now on
	p.dir.running = nil
	p.dir.mu.Unlock()
	close(p.done)
}

// Pid returns the program's process id.
func (p *Proc) Pid() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the program has ended.
func (p *Proc) Done() <-chan struct{} { return p.done }

// Err returns how the program ended, and nil before Done and after an exit status of zero.
func (p *Proc) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// Signal sends the program a signal. An error means that it has ended already.
func (p *Proc) Signal(sig os.Signal) error { return p.cmd.Process.Signal(sig) }

// patience is how long a program may take to end: PostgreSQL kills those of its processes that take longer than 5 s.
var patience = 15 * time.Second

// KillLater kills the program if it has not ended in good time after it was told to. One that hangs at its very end does so
// for ever: libfaketime waits there for a semaphore that a killed process of the server may have held. The caller stops the
// timer when it waits no more.
func (p *Proc) KillLater() *time.Timer {
	return time.AfterFunc(patience, func() { _ = p.Signal(os.Kill) }) // fails if it has ended
}

// Quit ends the program with SIGQUIT, which PostgreSQL takes as "at once, without a checkpoint", and waits for its end.
func (p *Proc) Quit() {
	if p.Signal(syscall.SIGQUIT) != nil {
		_ = p.Signal(os.Kill) // a system without SIGQUIT
	}
	p.wake()
	defer p.KillLater().Stop()
	<-p.done
}
