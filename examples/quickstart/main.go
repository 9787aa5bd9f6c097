//go:build unix

package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	fenced := flag.Bool("fence", true, "write under the fence; without it the late write gets in")
	flag.Parse()
	if os.Getenv(workerVariable) != "" {
		os.Exit(beWorker(*fenced)) // this process is one of the two that the director has started
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := play(ctx, *fenced)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

// A director tells the story. Each of its scenes waits for what happens, and never for "a while".
type director struct {
	*timeline
	db     *database
	fenced bool
	a, b   *worker
	after  invoice // what worker B has left
}

// play is the story from beginning to end.
func play(ctx context.Context, fenced bool) (err error) {
	d := &director{timeline: newTimeline(os.Stdout), fenced: fenced}
	d.say("database", "is starting")
	d.db, err = newDatabase(ctx)
	if err != nil {
		return cmp.Or(context.Cause(ctx), err) // a ^C says more than what followed from it
	}
	defer func() { err = errors.Join(err, d.db.close()) }()
	d.say("database", "is ready: %s", d.db.server.How())

	defer func() { d.a.end(); d.b.end() }()
	for _, scene := range []func(context.Context) error{
		d.aTakesTheLock, d.bWantsItToo, d.aIsFrozen, d.bTakesOver, d.aGoesOn,
	} {
		if err := scene(ctx); err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
	}
	return nil
}

func (d *director) aTakesTheLock(ctx context.Context) (err error) {
	if d.a, err = d.startWorker(ctx, "worker A"); err != nil {
		return err
	}
	return d.a.until("holds")
}

func (d *director) bWantsItToo(ctx context.Context) (err error) {
	if d.b, err = d.startWorker(ctx, "worker B"); err != nil {
		return err
	}
	return d.b.until("wants")
}

func (d *director) aIsFrozen(ctx context.Context) error {
	if err := d.a.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	d.say("director", "freezes worker A (SIGSTOP): it neither renews its lease nor sees it lapse")
	status, err := d.db.locks.Inspect(ctx, lockName)
	if err != nil {
		return err
	}
	d.say("database", "%s has %v left of its lease: worker B waits", status.Owner, status.Remaining.Round(10*time.Millisecond))
	return nil
}

func (d *director) bTakesOver(ctx context.Context) (err error) {
	if err := d.b.until("holds"); err != nil {
		return err
	}
	if err := d.b.finish(120); err != nil {
		return err
	}
	d.after, err = d.look(ctx)
	return err
}

func (d *director) aGoesOn(ctx context.Context) error {
	d.say("director", "lets worker A go on (SIGCONT): it still has its total to write")
	if err := d.a.signal(syscall.SIGCONT); err != nil {
		return err
	}
	refusal := d.a.finish(100)
	final, err := d.look(ctx)
	if err != nil {
		return err
	}
	return d.verdict(final, refusal)
}

func (d *director) look(ctx context.Context) (invoice, error) {
	row, err := d.db.invoice(ctx)
	if err == nil {
		d.say("database", "the row is now: %v", row)
	}
	return row, err
}

// verdict believes the row first, and only then what worker A says became of its write.
func (d *director) verdict(final invoice, refusal error) error {
	switch {
	case d.after.writer != "worker B":
		return fmt.Errorf("worker B's write is not there: %v", d.after)
	case final != d.after:
		return fmt.Errorf("the late write of worker A got in, what worker B had written is gone: %v", final)
	case refusal == nil:
		return errors.New("the row is worker B's, but worker A says that it has written")
	case !errors.Is(refusal, errRefused):
		return fmt.Errorf("the row is worker B's, but not because of the fence: %w", refusal)
	}
	d.end("The late write was refused. See what happens without the fence: go run ./examples/quickstart -fence=false")
	return nil
}
