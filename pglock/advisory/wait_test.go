package advisory_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock/advisory"
)

// Case C22: the holder's machine has gone silent. Whoever waits is told who that is, and when its time is over.
func TestAWaitThatEndsNamesTheHolder(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	p := pgtest.NewProxy(t, d)
	pc := poolConfig(t, p.URL())
	pc.ConnConfig.RuntimeParams["application_name"] = "billing"
	frozen, _ := ofPool(t, pc)
	key := advisory.Name("jobs", "nightly")
	l := take(t, frozen, key)
	p.Stall(pgtest.Both)
	t.Cleanup(p.Resume) // before the client is closed

	c := client(t, d)
	tx := beginPgx(t, d.URL)
	defer tx.rollback()
	ctx, cancel := context.WithCancelCause(soon(t))
	waiting := acquiring(ctx, c, key)
	d.WaitFor(t, marked)
	cancel(context.DeadlineExceeded)
	for what, err := range map[string]error{"Client": happens(t, "Acquire comes back", waiting).err, "Tx": tx.Acquire(shortly(t), key)} {
		var held *advisory.HeldError
		if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &held) || len(held.Holders) != 1 {
			t.Fatalf("%s.Acquire = %v, want who holds it", what, err)
		}
		h := held.Holders[0]
		if h.PID != l.PID() || h.Application != "billing" || h.Client != "127.0.0.1" || h.Age <= 0 || !h.Key.Same(key) || h.Waits || h.Shared {
			t.Errorf("%s.Acquire: the holder is %+v", what, h)
		}
		for _, part := range []string{`"jobs" "nightly"`, key.String(), `"billing"`, "127.0.0.1", "old", "pg_terminate_backend"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s.Acquire does not say %s: %v", what, part, err)
			}
		}
	}
}

// An asked is a tracer that tells, to who listens, that a statement begins.
type asked chan struct{}

func (a asked) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	select {
	case a <- struct{}{}:
	default:
	}
	return ctx
}

func (asked) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// The network goes silent after the lock was seen to be held: that was what the wait was for.
func TestAWaitThatEndsInSilenceSaysWhatItWasFor(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	key := advisory.Name("silence")
	l := take(t, client(t, d), key)
	p := pgtest.NewProxy(t, d)
	ctx, cancel := context.WithCancel(soon(t))
	defer cancel()
	asks := make(asked)
	pc := poolConfig(t, p.URL())
	pc.ConnConfig.Tracer = asks
	c, _ := ofPool(t, pc)
	waiting := acquiring(ctx, c, key)
	d.WaitFor(t, marked)
	happens(t, "it asks again", asks) // so the answer to its mark has arrived
	p.Stall(pgtest.Both)
	cancel()
	err := happens(t, "Acquire comes back", waiting).err
	wantErr(t, "Acquire", err, context.Canceled)
	wantErr(t, "Acquire", err, advisory.ErrHeld)
	p.Resume()
	release(t, l)
}

// Case C25: one call that waits is in nobody's way, and Close ends it.
func TestAWaitIsInNobodysWay(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	holder := client(t, d)
	key := advisory.Name("a")
	l := take(t, holder, key)
	c := client(t, d)
	waiting := acquiring(context.Background(), c, key)
	d.WaitFor(t, marked)

	refused(t, c, key)
	release(t, take(t, c, advisory.Name("b")))
	wantErr(t, "Close", c.Close(soon(t)), nil)
	err := happens(t, "Acquire comes back", waiting).err
	wantErr(t, "the waiting Acquire", err, advisory.ErrClosed)
	wantErr(t, "the waiting Acquire", err, advisory.ErrHeld)
	release(t, l)
	d.WaitFor(t, noLocks)
}

// Case C21, and what follows from it: an index is built concurrently, by the holder, while others wait.
func TestAWaitHoldsNoSnapshot(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	d.Exec(t, `CREATE TABLE rows (n int)`)
	holder := client(t, d)
	key := advisory.Name("a")
	l := take(t, holder, key)
	c := client(t, d)
	waiting := acquiring(soon(t), c, key)
	shared := acquiring(soon(t), client(t, d), key, advisory.Shared())
	d.WaitFor(t, marked)
	if _, err := d.Conn(t).Exec(soon(t), `CREATE INDEX CONCURRENTLY ON rows (n)`); err != nil {
		t.Error(err)
	}
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pglock/advisory' AND wait_event_type = 'Lock'`); n != 0 {
		t.Errorf("%d sessions wait in the lock table", n)
	}
	release(t, l)
	for range 2 { // in whichever order
		select {
		case a := <-waiting:
			release(t, a.lock)
		case a := <-shared:
			release(t, a.lock)
		case <-time.After(patience):
			t.Fatal("nobody is granted the lock")
		}
	}
	d.WaitFor(t, noLocks)
}

// A wait outlives its connection.
func TestAWaitGoesOnOverANewConnection(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	key := advisory.Name("a")
	holder := beginPgx(t, d.URL)
	wantErr(t, "TryAcquire", holder.TryAcquire(soon(t), key), nil)
	c := client(t, d)
	waiting := acquiring(soon(t), c, key)
	d.WaitFor(t, marked)
	if n := d.KillBackends(t, `application_name = 'pglock/advisory'`); n != 1 {
		t.Fatalf("%d connections wait, want 1", n)
	}
	d.WaitFor(t, marked)
	holder.rollback()
	release(t, granted(t, waiting))
}

// Cancellation at any moment, while connecting, asking, waiting or releasing, leaves no lock behind. 3,000 rounds under PGLOCK_LONG=1.
func TestACancelledAcquireLeavesNoLock(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	const workers = 3
	each := pgtest.Rounds(24, 3000) / workers
	key := advisory.Name("a")
	type count struct{ got, failed int }
	tally := make(chan count, workers)
	for w := range workers {
		c := client(t, d)
		go func() {
			var n count
			defer func() { tally <- n }()
			usual := time.Hour // what an acquisition takes here, about
			for i := range each {
				ctx, cancel := context.WithCancel(long(t))
				sixteenth := (w*7 + i*13) % 16
				if i == 1 {
					sixteenth = 0 // one is cut off for certain, as one is not
				}
				stop := time.AfterFunc(usual*time.Duration(sixteenth)/8, cancel)
				if i == 0 {
					stop.Stop()
				}
				begun := time.Now()
				l, err := c.Acquire(ctx, key)
				if err == nil {
					usual = time.Since(begun)
				} else {
					usual += usual / 16 // the machine has become slower, or the others in the way are more
				}
				switch {
				case err == nil:
					n.got++
					if err := l.Release(ctx); err != nil && !errors.Is(err, advisory.ErrNotReleased) {
						t.Errorf("Release: %v", err)
					}
				case errors.Is(err, context.Canceled) && l == nil:
					n.failed++
				default:
					t.Errorf("Acquire = %v, %v", l, err)
				}
				stop.Stop()
				cancel()
			}
		}()
	}
	var sum count
	for range workers {
		n := <-tally
		sum.got, sum.failed = sum.got+n.got, sum.failed+n.failed
	}
	if sum.got == 0 || sum.failed == 0 {
		t.Errorf("%d granted, %d failed: nothing was tested", sum.got, sum.failed)
	}
	d.WaitFor(t, noLocks)
	d.WaitFor(t, `SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'pglock/advisory' AND datname = current_database())`)
	t.Logf("%d granted, %d failed", sum.got, sum.failed)
}

// A reply that is lost leaves no lock: here those of the acquisition, and of the look at the backend after it.
func TestALostReplyLeavesNoLock(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	key := advisory.Name("a")
	for _, call := range []func(context.Context, *advisory.Client) (*advisory.Lock, error){
		func(ctx context.Context, c *advisory.Client) (*advisory.Lock, error) { return c.TryAcquire(ctx, key) },
		func(ctx context.Context, c *advisory.Client) (*advisory.Lock, error) { return c.Acquire(ctx, key) },
	} {
		for delay := 50 * time.Millisecond; !loses(t, d, call, delay); {
			delay *= 2 // this machine was slower
		}
		d.WaitFor(t, noLocks)
	}
}

// loses makes a call whose answer is held up and lost, and reports whether it was.
func loses(t *testing.T, d *pgtest.Database, call func(context.Context, *advisory.Client) (*advisory.Lock, error), delay time.Duration) bool {
	t.Helper()
	p := pgtest.NewProxy(t, d)
	defer p.Resume()
	c := open(t, p.URL(), advisory.Config{})
	ctx, cancel := context.WithCancel(soon(t))
	defer cancel()
	p.Delay(pgtest.ToClient, delay)
	answer := async(func() acquired {
		l, err := call(ctx, c)
		return acquired{l, err}
	})
	d.WaitFor(t, someLock)
	p.Stall(pgtest.Both)
	cancel()
	a := happens(t, "the call comes back", answer)
	if a.err == nil {
		p.Resume()
		wantErr(t, "Release", a.lock.Release(soon(t)), nil)
	}
	return a.err != nil
}

// A grant whose session cannot be made sure of is no grant: the connection, which lives, is closed.
func TestAGrantThatCannotBeCheckedIsGivenBack(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	key := advisory.Name("a")
	holder := beginPgx(t, d.URL)
	wantErr(t, "TryAcquire", holder.TryAcquire(soon(t), key), nil)
	waiting := acquiring(soon(t), open(t, d.URLAs(d.Role(t)), advisory.Config{}), key)
	d.WaitFor(t, marked)
	d.Exec(t, `REVOKE EXECUTE ON FUNCTION pg_catalog.pg_backend_pid() FROM PUBLIC`)
	holder.rollback()
	if err := happens(t, "Acquire comes back", waiting).err; state(err) != "42501" {
		t.Errorf("Acquire = %v, want what the server says", err)
	}
	d.WaitFor(t, noLocks)
}
