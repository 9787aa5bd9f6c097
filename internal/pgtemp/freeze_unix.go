//go:build unix

package pgtemp

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// Freeze stops every process of the server where it is, as a suspended virtual machine would: connections stay open and
// nothing answers, and the server's address still accepts (the kernel does). Thaw lets it go on. Local servers only.
func (s *Server) Freeze() error { return s.signal(syscall.SIGSTOP) }

// Thaw lets a frozen server go on. Local servers only.
func (s *Server) Thaw() error { return s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) error {
	if s.local == nil {
		return errNotLocal
	}
	s.local.mu.Lock()
	defer s.local.mu.Unlock()
	return s.local.signalAll(sig)
}

// thaw lets a frozen server take part in its own end.
func (c *cluster) thaw() {
	if c.frozen {
		_ = c.signalAll(syscall.SIGCONT) // it may be gone
	}
}

// signalAll signals the postmaster first, so that a frozen server has no process that was born meanwhile.
func (c *cluster) signalAll(sig syscall.Signal) error {
	if c.proc == nil {
		return nil
	}
	c.frozen = sig == syscall.SIGSTOP
	if err := c.proc.Signal(sig); err != nil {
		return fmt.Errorf("pgtemp: signal the server: %w", err)
	}
	children, err := c.children()
	for pid := range children {
		_ = syscall.Kill(pid, sig) // fails if it has ended since
	}
	return err
}

// children are the processes of the server but for the postmaster, and the state of each as ps has it: T is stopped, Z dead.
func (c *cluster) children() (map[int]byte, error) {
	table, err := exec.Command("ps", "-A", "-o", "pid=,ppid=,stat=").Output()
	if err != nil {
		return nil, fmt.Errorf("pgtemp: list the server's processes with ps: %w", err)
	}
	postmaster := strconv.Itoa(c.proc.Pid())
	found := map[int]byte{}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) == 3 && f[1] == postmaster {
			if pid, err := strconv.Atoi(f[0]); err == nil {
				found[pid] = f[2][0]
			}
		}
	}
	return found, nil
}
