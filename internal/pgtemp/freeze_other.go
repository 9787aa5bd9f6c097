//go:build !unix

package pgtemp

// Freeze needs SIGSTOP, and a local server, neither of which this system has.
func (s *Server) Freeze() error { return errNotLocal }

// Thaw undoes Freeze.
func (s *Server) Thaw() error { return errNotLocal }

func (c *cluster) thaw() {}
