//go:build unix

package main

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// An instant is a reading of CLOCK_MONOTONIC in nanoseconds: one clock for all processes of a machine, which nobody sets.
type instant int64

func now() instant {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // it is always there
	}
	return instant(t.Nano())
}

func (i instant) add(d time.Duration) instant      { return i + instant(d) }
func (i instant) since(past instant) time.Duration { return time.Duration(i - past) }
func (i instant) wait(ctx context.Context) error   { return sleep(ctx, i.since(now())) }
func (i instant) within(from, until instant) bool  { return from <= i && i < until }
