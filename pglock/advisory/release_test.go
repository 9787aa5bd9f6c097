package advisory_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock/advisory"
)

// Case C2: the usual end of a job, with a ctx that has ended, releases at once.
func TestReleaseWorksWithAContextThatHasEnded(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	c := client(t, d)
	key := advisory.Name("a")
	ctx, cancel := context.WithCancel(context.Background())
	l, err := c.Acquire(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	wantErr(t, "Release", l.Release(ctx), nil)
	if n := locks(t, d); n != 0 {
		t.Errorf("%d locks are left after Release", n)
	}
	l = take(t, c, key)
	own, cancel := context.WithCancel(l.Context())
	defer cancel()
	wantErr(t, "Release with the lock's own context", l.Release(own), nil)
	l = take(t, c, key)
	err = c.Do(l.Context(), advisory.Name("b"), func(ctx context.Context) error { return l.Release(ctx) }) // ends a moment later
	wantErr(t, "Release within another lock", err, nil)
	if n := locks(t, d); n != 0 {
		t.Errorf("%d locks are left after Release", n)
	}
}

func TestASecondReleaseSaysSo(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	c := client(t, d)
	l := take(t, c, advisory.Name("a"))
	release(t, l)
	next := take(t, c, advisory.Name("a"))
	wantEnd(t, l, advisory.ErrReleased)
	if n := locks(t, d); n != 1 {
		t.Errorf("the second Release touched the next lock: %d locks", n)
	}
	release(t, next)
	var zero advisory.Lock
	wantErr(t, "Release of a zero Lock", zero.Release(soon(t)), advisory.ErrReleased)
	wantErr(t, "the context of a zero Lock", context.Cause(zero.Context()), advisory.ErrReleased)
	if zero.PID() != 0 {
		t.Errorf("the zero Lock has the pid %d", zero.PID())
	}
}

// wantEnd checks that a lock has ended in that way, and that whoever is told so learns which lock it is, and what to do.
func wantEnd(t *testing.T, l *advisory.Lock, end error) {
	t.Helper()
	for what, err := range map[string]error{"Release": l.Release(soon(t)), "the cause": context.Cause(l.Context())} {
		wantErr(t, what, err, end)
		if err == nil || !strings.Contains(err.Error(), l.Key().String()) || !strings.Contains(err.Error(), "acquire it again") {
			t.Errorf("%s = %v, want it to name %v and the next step", what, err, l.Key())
		}
	}
}

// Case C6: who releases what was lost is told so, and it is logged once.
func TestReleaseOfALockThatWasLostSaysSo(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	var log text
	c := open(t, d.URL, advisory.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	l := take(t, c, advisory.Name("jobs", "a"))
	d.KillBackends(t, `application_name = 'pglock/advisory'`)

	err := l.Release(soon(t))
	var lost *advisory.LostError
	if !errors.As(err, &lost) || !lost.Key.Same(l.Key()) || state(err) != "57P01" {
		t.Errorf("Release = %v, want a *LostError with the server's reason", err)
	}
	// Of the two, one has got the loss first: the release, or whoever looks after the session.
	if err := l.Release(soon(t)); !errors.Is(err, advisory.ErrLost) && !errors.Is(err, advisory.ErrReleased) {
		t.Errorf("the second Release = %v", err)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "jobs") {
		t.Errorf("logged %d times:\n%s", n, log.String())
	}
	release(t, take(t, c, advisory.Name("jobs", "a")))
}

// The answer of the release counts, not that there was one.
func TestReleaseReadsTheServersAnswer(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	c := client(t, d)
	l, err := advisory.Idle(soon(t), c, advisory.Name("a"))
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, "Strip", advisory.Strip(soon(t), l), nil)
	advisory.Keep(l)
	wantErr(t, "Release of what is not held", l.Release(soon(t)), advisory.ErrLost)
	d.WaitFor(t, `SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)`, l.PID())
}

// Without an answer the connection goes, and the lock with it as soon as the server can know.
func TestReleaseWithoutAnAnswerClosesTheConnection(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	p := pgtest.NewProxy(t, d)
	c := open(t, p.URL(), advisory.Config{})
	l := take(t, c, advisory.Name("a"))
	p.Stall(pgtest.Both)
	begun := time.Now()
	err := l.Release(shortly(t))
	if took := time.Since(begun); took > 4*time.Second { // its own limit is 5 s
		t.Errorf("Release took %v with a ctx of 100 ms", took)
	}
	wantErr(t, "Release over a silent network", err, advisory.ErrNotReleased)
	wantErr(t, "Release over a silent network", err, context.DeadlineExceeded)
	p.Resume()
	d.WaitFor(t, noLocks)
}

func TestCloseReleasesEverything(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	c := client(t, d)
	a, b := take(t, c, advisory.Name("a")), take(t, c, advisory.Name("b"))
	waiting := acquiring(soon(t), c, advisory.Name("a"))
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	wantErr(t, "Close", c.Close(ended), nil)
	if n := locks(t, d); n != 0 {
		t.Errorf("%d locks are left after Close", n)
	}
	wantErr(t, "the waiting Acquire", happens(t, "Acquire comes back", waiting).err, advisory.ErrClosed)
	for _, l := range []*advisory.Lock{a, b} {
		wantEnd(t, l, advisory.ErrClosed)
	}
	_, err := c.TryAcquire(soon(t), advisory.Name("a"))
	wantErr(t, "TryAcquire", err, advisory.ErrClosed)
	wantErr(t, "Close again", c.Close(soon(t)), nil)
}

func TestCloseOverASilentNetworkEnds(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	p := pgtest.NewProxy(t, d)
	c, err := advisory.Open(p.URL(), advisory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	take(t, c, advisory.Name("a"))
	p.Stall(pgtest.Both)
	wantErr(t, "Close", c.Close(shortly(t)), advisory.ErrNotReleased)
	p.Resume()
	d.WaitFor(t, noLocks)
}

// text is a log that goroutines write to.
type text struct {
	mu sync.Mutex
	b  strings.Builder
}

func (w *text) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func (w *text) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}
