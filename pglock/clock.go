package pglock

import (
	"sync/atomic"
	"time"
)

// An instant is one moment on both clocks of this process. The monotonic one is immune to a wall clock that is stepped back;
// the wall clock goes on while the machine is suspended, which Go's monotonic clock does not. Trust ends when either says so.
type instant struct {
	mono time.Duration // since the clock was started
	wall time.Time     // without a monotonic reading
}

func (i instant) add(d time.Duration) instant {
	return instant{mono: i.mono + d, wall: i.wall.Add(d)}
}

func (i instant) isZero() bool { return i.wall.IsZero() }

// sooner answers the instant that has less left on each clock.
func sooner(a, b instant) instant {
	if b.mono < a.mono {
		a.mono = b.mono
	}
	if b.wall.Before(a.wall) {
		a.wall = b.wall
	}
	return a
}

// A clock reads both clocks. It never leaves this process: no instant is compared with the database's time.
type clock struct {
	start time.Time
	skew  atomic.Int64 // nanoseconds that tests add to the wall clock
}

func newClock() *clock { return &clock{start: time.Now()} }

func (c *clock) now() instant {
	t := time.Now()
	return instant{mono: t.Sub(c.start), wall: t.Round(0).Add(time.Duration(c.skew.Load()))}
}

// left is the time until i, by the clock that has less; negative once i is over.
func (c *clock) left(i instant) time.Duration {
	now := c.now()
	return min(i.mono-now.mono, i.wall.Sub(now.wall))
}
