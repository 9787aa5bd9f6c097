//go:build unix

package pgtemp

import (
	"errors"
	"fmt"
	"syscall"
	"time"
)

// Kill ends every process of the server at once, as when its machine loses power, and leaves its data; Resume starts it again.
// What the server had handed to the system is kept, whatever fsync says. Killing a halted server does nothing. Local servers
// only.
func (s *Server) Kill() error {
	if s.local == nil {
		return errNotLocal
	}
	c := s.local
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.proc == nil {
		return nil
	}
	if err := c.freeze(); err != nil { // or one would write while another is gone already
		return err
	}
	children, err := c.children()
	if err != nil {
		return err
	}
	for pid := range children {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	// While the postmaster stands still it collects nobody, so the dead can be seen.
	err = c.await('Z')
	_ = c.proc.Signal(syscall.SIGKILL)
	<-c.proc.Done()
	c.proc, c.frozen = nil, false
	return err
}

// KillProcess kills one process of the server, a backend say, of which pg_stat_activity gives the number. The server ends all
// others, recovers, and accepts connections again some time later. Local servers only.
func (s *Server) KillProcess(pid int) error { return s.signalOne(pid, syscall.SIGKILL) }

// FreezeProcess stops one process of the server where it is, until Thaw. Local servers only.
func (s *Server) FreezeProcess(pid int) error { return s.signalOne(pid, syscall.SIGSTOP) }

func (s *Server) signalOne(pid int, sig syscall.Signal) error {
	if s.local == nil {
		return errNotLocal
	}
	c := s.local
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.proc == nil {
		return errors.New("pgtemp: the server is halted")
	}
	children, err := c.children()
	if err != nil {
		return err
	}
	if _, ok := children[pid]; !ok {
		return fmt.Errorf("pgtemp: %d is no process of the server", pid)
	}
	if err := syscall.Kill(pid, sig); err != nil {
		return fmt.Errorf("pgtemp: signal a process of the server: %w", err)
	}
	return nil
}

// whileFrozen runs f while no process of the server does anything.
func (s *Server) whileFrozen(f func() error) error {
	c := s.local
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.proc == nil {
		return f()
	}
	defer c.thaw()
	if err := c.freeze(); err != nil {
		return err
	}
	return f()
}

// freeze returns when everything stands still: a signal takes a moment.
func (c *cluster) freeze() error {
	if err := c.signalAll(syscall.SIGSTOP); err != nil {
		return err
	}
	return c.await('T')
}

// await blocks until every child is in that state, or dead.
func (c *cluster) await(state byte) error {
	for late := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		children, err := c.children()
		if err != nil {
			return err
		}
		waits := false
		for _, now := range children {
			waits = waits || now != state && now != 'Z'
		}
		if !waits {
			return nil
		}
		if time.Now().After(late) {
			return fmt.Errorf("pgtemp: the server's processes are in state %v, and not in %c after 20 s", children, state)
		}
	}
}
