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

	"github.com/jackc/pgx/v5/pgxpool"
)

func main() {
	fenced := flag.Bool("fence", true, "pay invoice 2 under the fence; without it that one is paid twice, too")
	flag.Parse()
	if os.Getenv(workerVariable) != "" {
		os.Exit(beWorker(*fenced)) // this process is one of the two that the director has started
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	d := &director{start: time.Now(), fenced: *fenced}
	d.tell("database", "is starting")
	err := withDatabase(ctx, func(server, url string, pool *pgxpool.Pool) error {
		d.tell("database", "is ready: %s", server)
		d.url = url
		refused, err := d.play(ctx)
		if err != nil {
			return err
		}
		return audit(ctx, pool, d.fenced, refused)
	})
	err = cmp.Or(context.Cause(ctx), err) // a ^C says more than what followed from it
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "invoices:", err)
		os.Exit(1)
	}
}

// A director tells the story, and waits for what happens, never for "a while".
type director struct {
	start  time.Time
	fenced bool
	url    string // of the database
}

// tell prints who does what, and when since the beginning.
func (d *director) tell(actor, format string, args ...any) {
	fmt.Printf("%6.2f s  %-8s  %s\n", time.Since(d.start).Seconds(), actor, fmt.Sprintf(format, args...))
}

// play is the story from beginning to end.
func (d *director) play(ctx context.Context) (refused bool, err error) {
	a, err := d.startWorker(ctx, "worker A")
	if err != nil {
		return false, err
	}
	defer a.end()
	if !d.hear(a, "holds") {
		return false, fmt.Errorf("worker A has ended early: %w", a.Wait())
	}
	if err := a.Process.Signal(syscall.SIGSTOP); err != nil {
		return false, err
	}
	d.tell("director", "freezes worker A (SIGSTOP): it has looked, and not yet paid")

	b, err := d.startWorker(ctx, "worker B")
	if err != nil {
		return false, err
	}
	defer b.end()
	if refused, err := d.payDay(b); err != nil || refused {
		return false, cmp.Or(err, errors.New("worker B was refused, though nobody came after it"))
	}

	d.tell("director", "lets worker A go on (SIGCONT): it pays what was due when it looked")
	if err := a.Process.Signal(syscall.SIGCONT); err != nil {
		return false, err
	}
	return d.payDay(a)
}
