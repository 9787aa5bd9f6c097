package pgtemp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"time"
)

// StandbyOptions say how a standby follows. The zero value follows directly, by the machine's clock.
type StandbyOptions struct {
	Name  string        // its application_name, by which the primary knows it. Default: standby
	Via   string        // host:port by which it reaches the primary, such as that of a relay. Default: the primary's own
	Clock time.Duration // how far its clock is ahead of the machine's; negative: behind. See CheckClock
}

// Standby starts a hot standby of the server: a copy that follows it by streaming replication and accepts read-only
// connections. It blocks until it does; it may still lag behind. Stop it like any server. The primary runs on meanwhile.
// Local servers only.
//
// The copy is made here and not by pg_basebackup, which not every package of the server has.
func (s *Server) Standby(ctx context.Context, o StandbyOptions) (*Server, error) {
	c, err := s.backup(ctx, false)
	if err != nil {
		return nil, err
	}
	if err := c.follow(s.local, o); err != nil {
		return nil, errors.Join(err, c.dir.Close())
	}
	return c.serve(ctx)
}

// Follow makes a halted server a standby of another: an old primary that comes back. Resume then starts it, and fails if it
// has gone further than the other did. Local servers only.
func (s *Server) Follow(primary *Server, o StandbyOptions) error {
	if s.local == nil || primary.local == nil {
		return errNotLocal
	}
	s.local.mu.Lock()
	defer s.local.mu.Unlock()
	if s.local.proc != nil {
		return errors.New("pgtemp: a server that runs cannot begin to follow: halt it first")
	}
	return s.local.follow(primary.local, o)
}

func (c *cluster) follow(primary *cluster, o StandbyOptions) error {
	host, port, err := net.SplitHostPort(cmp.Or(o.Via, fmt.Sprintf("127.0.0.1:%d", primary.port)))
	if err != nil {
		return fmt.Errorf("pgtemp: StandbyOptions.Via: %w", err)
	}
	if c.clock, err = clock(o.Clock); err != nil {
		return err
	}
	c.settings = maps.Clone(c.settings)
	delete(c.settings, "synchronous_standby_names") // nobody follows it
	c.settings["primary_conninfo"] = fmt.Sprintf("host=%s port=%s user=postgres application_name=%s", host, port, cmp.Or(o.Name, "standby"))
	c.settings["wal_retrieve_retry_interval"] = "100ms" // a promotion may have to wait for that long
	return c.write("standby.signal", "")
}
