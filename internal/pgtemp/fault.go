package pgtemp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// A Mode is how a server goes down.
type Mode syscall.Signal

const (
	// Fast is an orderly restart: sessions are ended, everything is written.
	Fast = Mode(syscall.SIGINT)
	// Immediate is a crash: no checkpoint, recovery at the next start. Commits that were not flushed (the default, see
	// Options.Durable) are lost.
	Immediate = Mode(syscall.SIGQUIT)
)

var errNotLocal = errors.New("pgtemp: only a server started from local binaries can be halted, frozen or copied: set Options.Fresh, and install the server")

// Restart halts the server and resumes it: same data, same address. Local servers only.
func (s *Server) Restart(ctx context.Context, mode Mode) error {
	if err := s.Halt(ctx, mode); err != nil {
		return err
	}
	return s.Resume(ctx)
}

// Halt takes the server down and leaves its data. It blocks until the server has ended, which is killed if it takes very
// long; if ctx ends first, the server is still on its way down. Connections are refused from then on. Halting a halted server
// does nothing. Local servers only.
func (s *Server) Halt(ctx context.Context, mode Mode) error {
	if s.local == nil {
		return errNotLocal
	}
	c := s.local
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.proc == nil {
		return nil
	}
	c.thaw()
	_ = c.proc.Signal(syscall.Signal(mode)) // fails if it has ended by itself, which is what we want
	defer c.proc.KillLater().Stop()
	select {
	case <-c.proc.Done():
		c.proc = nil
		return nil
	case <-ctx.Done():
		return fmt.Errorf("pgtemp: halt: %w", context.Cause(ctx))
	}
}

// Resume starts a halted server again, on the same data and the same address, and blocks until it accepts connections.
// After an error it is still halted, and Resume may be called again. Resuming a running server does nothing. Local
// servers only.
func (s *Server) Resume(ctx context.Context) error {
	if s.local == nil {
		return errNotLocal
	}
	c := s.local
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.proc != nil {
		return nil
	}
	return c.launch(ctx)
}

// Set changes settings of a halted server, see Options.Settings. Local servers only.
func (s *Server) Set(settings map[string]string) error {
	if s.local == nil {
		return errNotLocal
	}
	c := s.local
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.proc != nil {
		return errors.New("pgtemp: a server that runs takes no other settings: halt it first")
	}
	all := maps.Clone(c.settings) // a copy of this server may have the same ones
	maps.Copy(all, settings)
	c.settings = all
	return nil
}

// Promote ends the recovery of a standby and blocks until it accepts writes. It works on every kind of server.
func (s *Server) Promote(ctx context.Context) error {
	return s.session(ctx, func(conn *pgx.Conn) error {
		var promoted bool
		if err := conn.QueryRow(ctx, `SELECT pg_promote(true, 30)`).Scan(&promoted); err != nil {
			return fmt.Errorf("pgtemp: promote: %w", err)
		}
		if !promoted {
			return errors.New("pgtemp: the standby was not promoted within 30 s")
		}
		return nil
	})
}

// session runs f with a superuser's connection to database postgres.
func (s *Server) session(ctx context.Context, f func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return fmt.Errorf("pgtemp: %w", err)
	}
	return errors.Join(f(conn), conn.Close(context.WithoutCancel(ctx)))
}
