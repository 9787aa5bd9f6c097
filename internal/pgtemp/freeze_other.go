//go:build !unix

package pgtemp

// Freeze needs SIGSTOP, and a local server, neither of which this system has.
func (s *Server) Freeze() error { return errNotLocal }

// Thaw undoes Freeze.
func (s *Server) Thaw() error { return errNotLocal }

func (c *cluster) thaw() {}

// Kill needs signals too.
func (s *Server) Kill() error { return errNotLocal }

// KillProcess needs signals too.
func (s *Server) KillProcess(int) error { return errNotLocal }

// FreezeProcess needs signals too.
func (s *Server) FreezeProcess(int) error { return errNotLocal }

func (s *Server) whileFrozen(func() error) error { return errNotLocal }
