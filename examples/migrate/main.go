package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/pglock/migrateguard"
)

func main() {
	if os.Getenv(replicaVariable) != "" {
		os.Exit(beReplica()) // this process is one of those that the director has started
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := play(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "migrate:", err)
		os.Exit(1)
	}
}

// A director tells the story. Each of its scenes waits for what happens, and never for "a while".
type director struct {
	*timeline
	db *database

	report  pgx.Tx // somebody's, which CREATE INDEX CONCURRENTLY waits for
	runner  *replica
	waiters []*replica
	started []*replica // all that were, in both acts
}

// play is the story from beginning to end.
func play(ctx context.Context) (err error) {
	d := &director{timeline: newTimeline(os.Stdout)}
	d.say("database", "is starting")
	d.db, err = newDatabase(ctx)
	if err != nil {
		return cmp.Or(context.Cause(ctx), err) // a ^C says more than what followed from it
	}
	defer func() { err = errors.Join(err, d.db.close()) }()
	defer d.leave()
	d.say("database", "is ready, and empty: %s", d.db.server.How())

	for _, scene := range []func(context.Context) error{
		d.firstAct, d.aWaiterIsKilled, d.allEndClean, d.secondAct, d.theRunnerIsKilled, d.theOthersSayTheWayOut, d.theWayOut,
	} {
		if err := scene(ctx); err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
	}
	d.end("One migrates, the others wait for it and hold nothing. What was broken off is never taken for done.")
	return nil
}

// leave takes everybody away who is still there.
func (d *director) leave() {
	for _, r := range d.started {
		r.end()
	}
	if d.report != nil {
		d.report.Rollback(context.Background())
	}
}

func (d *director) firstAct(ctx context.Context) error {
	d.act("Act one: a replica that waits is killed")
	return d.startTogether(ctx, "first")
}

func (d *director) secondAct(ctx context.Context) error {
	d.act("Act two: the replica that migrates is killed")
	return d.startTogether(ctx, "second")
}

// startTogether starts four replicas, and waits until one builds the index and three wait for it.
func (d *director) startTogether(ctx context.Context, act string) (err error) {
	d.say("director", "begins to read a report, which takes its time")
	if d.report, err = d.db.read(ctx); err != nil {
		return err
	}
	d.say("director", "starts four replicas, which find migrations to run")
	d.runner, d.waiters = nil, nil
	var all []*replica
	defer func() { d.started = append(d.started, all...) }() // none is left behind
	for _, name := range []string{"replica A", "replica B", "replica C", "replica D"} {
		r, err := d.startReplica(ctx, name, act)
		if err != nil {
			return err
		}
		all = append(all, r)
	}
	for _, r := range all {
		word, err := r.until("waiting", "title: started", "author: started")
		switch {
		case err != nil:
			return err
		case word == "waiting":
			d.waiters = append(d.waiters, r)
		default:
			d.runner = r
		}
	}
	if d.runner == nil || len(d.waiters) != 3 {
		return fmt.Errorf("%d replicas wait, not three", len(d.waiters))
	}
	if err := d.db.untilIndexWaits(ctx); err != nil {
		return err
	}
	d.say("director", "sees %s build an index, which waits for the report, and three wait for %s", d.runner.name, d.runner.name)
	return nil
}

func (d *director) aWaiterIsKilled(context.Context) error {
	victim := d.waiters[0]
	d.waiters = d.waiters[1:]
	d.say("director", "kills %s (kill -9)", victim.name)
	return victim.kill()
}

func (d *director) allEndClean(ctx context.Context) error {
	if err := d.endReport(ctx); err != nil {
		return err
	}
	for _, r := range append(d.waiters, d.runner) {
		if err := r.finish(statusServes); err != nil {
			return err
		}
	}
	return d.wantState(ctx, "version 2, indexes: books_pkey, books_title")
}

func (d *director) theRunnerIsKilled(context.Context) error {
	d.say("director", "kills %s (kill -9), in the middle of its migration", d.runner.name)
	return d.runner.kill()
}

func (d *director) theOthersSayTheWayOut(ctx context.Context) error {
	for _, r := range d.waiters {
		if err := r.finish(statusDirty); err != nil {
			return err
		}
	}
	return d.wantState(ctx, "version 3, dirty, indexes: books_pkey, books_title, books_author (invalid)")
}

// theWayOut is what a person does: look, repair, and say at which version the database really is.
func (d *director) theWayOut(ctx context.Context) error {
	if err := d.endReport(ctx); err != nil {
		return err
	}
	d.say("director", "drops what was left behind, and forces version 2: nothing of migration 3 is there now")
	if _, err := d.db.pool.Exec(ctx, `DROP INDEX books_author`); err != nil {
		return err
	}
	guard, err := newGuard("director", d.db.pool, second, func(e migrateguard.Event) { d.say("director", "%v", e) })
	if err != nil {
		return err
	}
	if err := guard.Force(ctx, 2); err != nil {
		return err
	}
	d.say("director", "starts another replica")
	r, err := d.startReplica(ctx, "replica E", "second")
	if err != nil {
		return err
	}
	defer r.end()
	if err := r.finish(statusServes); err != nil {
		return err
	}
	return d.wantState(ctx, "version 3, indexes: books_pkey, books_title, books_author")
}

func (d *director) endReport(ctx context.Context) error {
	d.say("director", "has read the report to its end")
	err := d.report.Commit(ctx)
	d.report = nil
	return err
}

// wantState tells the story's end from what the database says, and not from what the replicas say.
func (d *director) wantState(ctx context.Context, want string) error {
	got, err := d.db.look(ctx)
	if err != nil {
		return err
	}
	d.say("database", "is at %s", got)
	if got != want {
		return fmt.Errorf("the database is at %s, want %s", got, want)
	}
	return nil
}
