package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/fencedlock/fencedlock/pglock"
)

func main() {
	if os.Getenv(replicaVariable) != "" {
		os.Exit(beReplica()) // this process is one of those that the director has started
	}
	lock := flag.Bool("lock", true, "let the schedulers ask for the lock of the job; false shows what happens if they do not")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := play(ctx, *lock)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "scheduler:", err)
		os.Exit(1)
	}
}

// A director tells the story. Each of its scenes waits for what happens, and never for "a while".
type director struct {
	*timeline
	db    *database
	lock  bool
	words chan word // of all replicas

	replicas []*replica
	runner   *replica // of the last tick
}

// play is the story from beginning to end.
func play(ctx context.Context, lock bool) (err error) {
	d := &director{timeline: newTimeline(os.Stdout), lock: lock, words: make(chan word, 1000)}
	d.say("database", "is starting")
	d.db, err = newDatabase(ctx)
	if err != nil {
		return cmp.Or(context.Cause(ctx), err) // a ^C says more than what followed from it
	}
	defer func() { err = errors.Join(err, d.db.close()) }()
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the story has not come to its end within a minute"))
	defer cancel()
	defer func() {
		for _, r := range d.replicas {
			r.end()
		}
	}()
	d.say("database", "is ready: %s", d.db.server.How())

	scenes := []func(context.Context) error{
		d.threeReplicas, d.twoRuns, d.theRunnerIsKilled, d.twoRuns, d.allEnd, d.theRunsAreCounted,
	}
	for _, scene := range scenes {
		if err := scene(ctx); err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
	}
	d.end("Each tick ran once, whatever the clocks say and whoever is gone.")
	return nil
}

func (d *director) threeReplicas(ctx context.Context) error {
	const off = 300 * time.Millisecond
	for i, name := range []string{"replica A", "replica B", "replica C"} {
		r, err := d.startReplica(ctx, name, time.Duration(i-1)*off)
		if err != nil {
			return err
		}
		d.replicas = append(d.replicas, r)
	}
	for range d.replicas {
		if _, err := d.hear(ctx, "is ready"); err != nil {
			return err
		}
	}
	return nil
}

func (d *director) twoRuns(ctx context.Context) (err error) {
	for range 2 {
		if d.runner, err = d.hear(ctx, "has run"); err != nil {
			return err
		}
	}
	return nil
}

// hear waits until a replica says something that begins so.
func (d *director) hear(ctx context.Context, beginning string) (*replica, error) {
	for {
		select {
		case w := <-d.words:
			if strings.HasPrefix(w.text, "failed") {
				return nil, fmt.Errorf("%s %s", w.replica.name, w.text)
			}
			if strings.HasPrefix(w.text, beginning) {
				return w.replica, nil
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// theRunnerIsKilled when it has released the lock: that of one that is killed while it runs the job is free when its lease is over,
// and the ticks until then are lost.
func (d *director) theRunnerIsKilled(ctx context.Context) error {
	if err := d.released(ctx); err != nil {
		return err
	}
	d.say("director", "kills %s (kill -9)", d.runner.name)
	return d.runner.kill()
}

func (d *director) released(ctx context.Context) (err error) {
	locks, err := pglock.New(d.db.pool, pglock.Config{Owner: "director"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeLocks(locks)) }()
	for {
		s, err := locks.Inspect(ctx, jobName)
		if err != nil || !s.Held {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond): // nobody is told of a release who does not want the lock
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (d *director) allEnd(context.Context) error {
	d.say("director", "ends the others")
	for _, r := range d.replicas {
		if r.cmd.ProcessState == nil {
			if err := r.finish(); err != nil {
				return err
			}
		}
	}
	return nil
}

// theRunsAreCounted tells the story's end from what the database says, and not from what the replicas say.
func (d *director) theRunsAreCounted(ctx context.Context) error {
	ticks, err := d.db.count(ctx)
	if err != nil {
		return err
	}
	for _, t := range ticks {
		d.say("database", "tick %d: %s by %s", t.tick, plural(t.runs), cmp.Or(t.replicas, "nobody"))
		if t.runs > 1 {
			err = errors.Join(err, fmt.Errorf("tick %d ran %d times", t.tick, t.runs))
		}
		if t.runs == 0 {
			err = errors.Join(err, fmt.Errorf("tick %d was lost", t.tick))
		}
	}
	if len(ticks) < 2 {
		err = errors.Join(err, fmt.Errorf("%d ticks are too few to tell", len(ticks)))
	}
	return err
}

func plural(runs int) string {
	if runs == 1 {
		return "1 run"
	}
	return fmt.Sprintf("%d runs", runs)
}
