package gocronlock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"

	gocronlock "github.com/fencedlock/fencedlock/adapters/gocron"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// A node runs a job each second while it leads.
type node struct {
	elector *pglock.Elector
	skipped chan struct{}
}

// newNode starts a node, whose scheduler runs while it leads, or always.
func newNode(t *testing.T, url string, name string, ran chan<- string, always bool) *node {
	t.Helper()
	n := &node{skipped: make(chan struct{}, 100)}
	var err error
	if n.elector, err = pglock.NewElector(client(t, url, pglock.Config{Owner: name}), "leader", pglock.ElectorConfig{}); err != nil {
		t.Fatal(err)
	}
	e, err := gocronlock.NewElector(n.elector)
	if err != nil {
		t.Fatal(err)
	}
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(e), gocron.WithMonitor(n))
	if err != nil {
		t.Fatal(err)
	}
	_, err = scheduler.NewJob(gocron.DurationJob(time.Second), gocron.NewTask(func(ctx context.Context) error {
		ran <- name
		<-ctx.Done() // it winds down only when it is told to
		if !n.elector.IsLeader() {
			t.Errorf("%s: the lease ended before the job", name)
		}
		return nil
	}), gocron.WithSingletonMode(gocron.LimitModeReschedule))
	if err != nil {
		t.Fatal(err)
	}
	if always {
		scheduler.Start()
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		err := n.elector.Run(ctx, func(ctx context.Context, _ *pglock.Lease) error {
			if !always {
				scheduler.Start()
			}
			<-ctx.Done()
			return scheduler.StopJobs()
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: Run = %v", name, err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if err := scheduler.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// IncrementJob is for gocron, which tells what has become of a tick.
func (n *node) IncrementJob(_ uuid.UUID, _ string, _ []string, status gocron.JobStatus) {
	if status == gocron.Skip {
		n.skipped <- struct{}{}
	}
}

// RecordJobTiming is for gocron.
func (n *node) RecordJobTiming(_, _ time.Time, _ uuid.UUID, _ string, _ []string) {}

func TestJobsRunOnTheLeaderAndGoWithTheLead(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	ran := make(chan string, 100)
	a := newNode(t, d.URL, "a", ran, false)
	if got := happens(t, "a run", ran); got != "a" {
		t.Fatalf("%s leads", got)
	}
	b := newNode(t, d.URL, "b", ran, false)
	for _, change := range []struct {
		from, to *node
		name     string
	}{{a, b, "b"}, {b, a, "a"}} { // so the scheduler of a is started for the second time
		if err := change.from.elector.Abstain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := happens(t, "a run of the next leader", ran); got != change.name {
			t.Errorf("%s runs a job, not %s", got, change.name)
		}
		change.from.elector.Stand()
	}
}

func TestASchedulerThatDoesNotLeadSkipsItsTicks(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	ran := make(chan string, 100)
	newNode(t, d.URL, "a", ran, false)
	happens(t, "a run", ran)
	b := newNode(t, d.URL, "b", ran, true)
	for range 2 {
		happens(t, "a tick is skipped", b.skipped)
	}
	if len(ran) > 0 {
		t.Errorf("%s has run a job", <-ran)
	}
}
