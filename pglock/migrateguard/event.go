package migrateguard

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// A Kind is what an Event is about.
type Kind string

const (
	// Waiting: somebody else is at it. It comes when the wait begins, and every 10 s.
	Waiting Kind = "waiting"
	// Started: a migration begins.
	Started Kind = "started"
	// Finished: a migration has ended. Err says how, and nil that it was recorded.
	Finished Kind = "finished"
)

// An Event is what happens during a call, for people. String is a sentence of it.
type Event struct {
	Kind      Kind
	Migration Migration     // that started or finished
	K, N      int           // it is number K of N
	Elapsed   time.Duration // since the wait or the migration began, by the clock of this process
	Err       error         // Waiting: who is in the way, and since when; Finished: why it failed
}

func (e Event) String() string {
	took := e.Elapsed.Round(time.Millisecond)
	what := fmt.Sprintf("migration %d of %d, %v", e.K, e.N, e.Migration)
	switch {
	case e.Kind == Waiting && took < 100*time.Millisecond: // it has just begun
		return "waiting: " + unprefixed(e.Err)
	case e.Kind == Waiting:
		return fmt.Sprintf("waiting for %v: %s", took, unprefixed(e.Err))
	case e.Kind == Started:
		return what + ": started"
	case e.Err != nil:
		return fmt.Sprintf("%s: failed after %v: %s", what, took, unprefixed(e.Err))
	}
	return fmt.Sprintf("%s: done in %v", what, took)
}

// tell hands an event on.
func (g *Guard) tell(e Event) {
	level := slog.LevelInfo
	if e.Kind == Finished && e.Err != nil {
		level = slog.LevelError
	}
	g.cfg.Logger.LogAttrs(context.Background(), level, "migrateguard: "+e.String(), slog.String("kind", string(e.Kind)))
	if g.cfg.Notify != nil {
		g.cfg.Notify(e)
	}
}

// unprefixed is the text of an error without the name of the package that it is from.
func unprefixed(err error) string {
	s := err.Error()
	for _, p := range []string{"migrateguard: ", "pglock: ", "advisory: "} {
		s = strings.TrimPrefix(s, p)
	}
	return s
}
