package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/pglock"
)

func main() {
	guarded := flag.Bool("guard", true, "guard the files; without it the late PUT gets in")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	start := time.Now()
	tell(start, "database", "is starting")
	err := withDatabase(ctx, func(server string, pool *pgxpool.Pool) error {
		tell(start, "database", "is ready: %s", server)
		return withService(pool, *guarded, func(url string) error {
			tell(start, "service", "takes files at %s/files/, and keeps its fence in the database", url)
			return story{start, pool, url + "/files/report.txt"}.play(ctx)
		})
	})
	err = cmp.Or(context.Cause(ctx), err) // a ^C says more than what followed from it
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "storage:", err)
		os.Exit(1)
	}
}

// tell prints who does what, and when since the beginning.
func tell(start time.Time, actor, format string, args ...any) {
	fmt.Printf("%6.2f s  %-8s  %s\n", time.Since(start).Seconds(), actor, fmt.Sprintf(format, args...))
}

// A story is told by waiting for what happens, never for "a while".
type story struct {
	start time.Time
	pool  *pgxpool.Pool
	url   string // of the report
}

func (s story) play(ctx context.Context) (err error) {
	// Client A does not renew its lease, as one that is suspended would not. examples/quickstart freezes a real process.
	withA, closeA, err := s.lock(ctx, "client A", pglock.NoRenewal())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeA()) }()
	if err := s.put(withA, "client A", "draft", http.StatusNoContent); err != nil {
		return err
	}
	tell(s.start, "client A", "is suspended: nobody renews its lease")

	withB, closeB, err := s.lock(ctx, "client B")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeB()) }()
	if err := s.put(withB, "client B", "report", http.StatusNoContent); err != nil {
		return err
	}

	tell(s.start, "client A", "goes on, and does not know how long it was away")
	if err := s.put(withA, "client A", "late draft", http.StatusConflict); err != nil {
		return err
	}
	if err := s.put(ctx, "client C", "a report by one who knows of no lock", http.StatusPreconditionRequired); err != nil {
		return err
	}
	return s.put(withB, "client B", "report, with a postscript", http.StatusNoContent)
}

// lock waits for the lock and returns a context that carries its grant to the Transport.
func (s story) lock(ctx context.Context, who string, opts ...pglock.Option) (_ context.Context, release func() error, err error) {
	locks, err := pglock.New(s.pool, pglock.Config{Owner: who, TTL: 2 * time.Second}) // short, to see it lapse soon
	if err != nil {
		return nil, nil, err
	}
	release = func() error { return locks.Close(ctx) }
	tell(s.start, who, "wants the lock %q", lockName)
	lease, err := locks.Acquire(ctx, lockName, opts...)
	if err != nil {
		return nil, nil, errors.Join(err, release())
	}
	tell(s.start, who, "holds the lock, token %d", lease.Token())
	return fence.NewContext(ctx, lease.Grant()), release, nil
}

// put sends the report and tells what came of it. It believes the file first, and only then the answer.
func (s story) put(ctx context.Context, who, text string, want int) error {
	resp, answer, err := put(ctx, s.url, text)
	if err != nil {
		return err
	}
	tell(s.start, who, "PUT %q: %s", text, resp.Status)
	if answer != "" {
		tell(s.start, "", "%s\n%21s%s", resp.Header.Get("Content-Type"), "", answer)
	}
	file, err := get(ctx, s.url)
	if err != nil {
		return err
	}
	tell(s.start, "service", "the file is now: %q", file)
	return verdict(who, file == text, resp.StatusCode, want)
}

// verdict compares what became of a PUT with the answer that it should get.
func verdict(who string, written bool, status, want int) error {
	switch {
	case written && want != http.StatusNoContent:
		return fmt.Errorf("the PUT of %s got in, what client B had written is gone", who)
	case !written && want == http.StatusNoContent:
		return fmt.Errorf("the PUT of %s is not in the file", who)
	case status != want:
		return fmt.Errorf("the PUT of %s was answered with %d, want %d", who, status, want)
	}
	return nil
}
