package gocronlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/fencedlock/fencedlock/pglock"
)

// ErrNotLeader comes from Elector.IsLeader on every node but the one that leads.
var ErrNotLeader = errors.New("gocronlock: this node does not lead")

// An Elector is a gocron.Elector: all jobs of a scheduler run on the node that leads, and only there. See
// gocron.WithDistributedElector. A change of leaders that falls on a tick may run it twice or not at all: where each tick counts,
// use a Locker.
type Elector struct {
	elector *pglock.Elector
}

// NewElector lets gocron follow an election. The node is a candidate only while e.Run does, and leads until the function that it was
// given has returned. So that no other node begins while a job still runs here, let that function start the scheduler, and
// stop its jobs:
//
//	err := e.Run(ctx, func(ctx context.Context, lease *pglock.Lease) error {
//		scheduler.Start()
//		<-ctx.Done()
//		return scheduler.StopJobs() // ends the contexts of the jobs, and waits for them
//	})
//
// An error of StopJobs, jobs that did not stop in time, ends Run. The error of NewElector matches pglock.ErrInvalidOption.
func NewElector(e *pglock.Elector) (*Elector, error) {
	if e == nil {
		return nil, fmt.Errorf("%w: the elector is nil", pglock.ErrInvalidOption)
	}
	return &Elector{e}, nil
}

// IsLeader is for gocron, which calls it before each run and skips it on an error. It is nil while this node leads, as
// pglock.Elector.IsLeader has it, and ErrNotLeader else. It sends nothing, and does not block.
func (e *Elector) IsLeader(context.Context) error {
	if e.elector.IsLeader() {
		return nil
	}
	return ErrNotLeader
}
