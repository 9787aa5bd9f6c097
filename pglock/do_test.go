package pglock_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

var errWork = errors.New("the work failed")

func TestDoRunsUnderTheLockAndReleasesIt(t *testing.T) {
	t.Parallel()
	for what, want := range map[string]error{"success": nil, "failure": errWork} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			rival := client(t, d)
			type key struct{}
			ctx := context.WithValue(t.Context(), key{}, "kept")
			err := client(t, d).Do(ctx, "a", func(ctx context.Context, l *pglock.Lease) error {
				if l.Name() != "a" || !l.Valid() || ctx.Value(key{}) != "kept" {
					t.Errorf("%v, valid %v", l, l.Valid())
				}
				refused(t, rival, "a")
				return want
			})
			if want == nil && err != nil || want != nil && !errors.Is(err, want) {
				t.Errorf("Do = %v, want %v", err, want)
			}
			if errors.Is(err, pglock.ErrLost) || holds(t, d, "a") {
				t.Errorf("Do = %v, held afterwards: %v", err, holds(t, d, "a"))
			}
		})
	}
}

func TestDoTellsTheLossAndTheFailureApart(t *testing.T) {
	t.Parallel()
	for what, answer := range map[string]error{"f succeeds all the same": nil, "f fails": errWork} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			c := open(t, d.URL, pglock.Config{RenewEvery: 100 * time.Millisecond})
			err := c.Do(soon(t), "a", func(ctx context.Context, l *pglock.Lease) error {
				d.Exec(t, `DELETE FROM pglock.leases`)
				happens(t, "f's context ends", ctx.Done())
				var lost *pglock.LostError
				if cause := context.Cause(ctx); !errors.As(cause, &lost) || lost.Cause != pglock.Deleted || lost.Token != l.Token() {
					t.Errorf("the cause is %v", cause)
				}
				return answer
			})
			wantErr(t, "Do", err, pglock.ErrLost)
			if errors.Is(err, errWork) != (answer != nil) {
				t.Errorf("Do = %v", err)
			}
		})
	}
}

// A loss that f returns itself is told once.
func TestDoTellsTheLossOnce(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	err := open(t, d.URL, pglock.Config{RenewEvery: 100 * time.Millisecond}).Do(soon(t), "a", func(ctx context.Context, l *pglock.Lease) error {
		d.Exec(t, `DELETE FROM pglock.leases`)
		happens(t, "f's context ends", ctx.Done())
		return context.Cause(ctx)
	})
	var lost *pglock.LostError
	if !errors.As(err, &lost) || err.Error() != lost.Error() {
		t.Errorf("Do = %v, want the loss", err)
	}
}

func TestDoRenewsUntilTheWorkHasWoundDown(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := open(t, d.URL, pglock.Config{RenewEvery: 100 * time.Millisecond})
	ctx, cancel := context.WithCancelCause(t.Context())
	err := c.Do(ctx, "a", func(ctx context.Context, l *pglock.Lease) error {
		cancel(errShutdown)
		happens(t, "f's context ends", ctx.Done())
		wantErr(t, "the cause", context.Cause(ctx), errShutdown)
		renewedAgain(t, d, "a")
		if !l.Valid() || l.Context().Err() != nil {
			t.Errorf("the lease ended with the caller's ctx: %v", l.Err())
		}
		return ctx.Err()
	})
	wantErr(t, "Do", err, context.Canceled)
	if errors.Is(err, pglock.ErrLost) || errors.Is(err, pglock.ErrNotReleased) {
		t.Errorf("Do = %v", err)
	}
	if holds(t, d, "a") { // released, though the caller's ctx had ended
		t.Error("held after Do")
	}
}

func TestDoReleasesWhenTheWorkPanicsOrExits(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := client(t, d)
	for what, end := range map[string]func(){
		"panic":        func() { panic(errWork) },
		"Goexit":       runtime.Goexit,
		"panic(nil)":   func() { panic(nil) }, //nolint:govet // on purpose
		"after cancel": nil,
	} {
		t.Run(what, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if end == nil {
				end = func() { cancel(); panic(errWork) }
			}
			recovered, returned := make(chan any, 1), false
			go func() {
				defer func() { recovered <- recover() }()
				c.Do(ctx, "a", func(context.Context, *pglock.Lease) error { end(); return nil }) //nolint:errcheck // it does not return
				returned = true
			}()
			if v := happens(t, "Do ends", recovered); returned || (v == nil) != (what == "Goexit") {
				t.Errorf("Do returned: %v; recovered: %v", returned, v)
			}
			if holds(t, d, "a") {
				t.Error("held after Do")
			}
		})
	}
}

func TestDoWithoutALockDoesNotRun(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := client(t, d)
	must := func(context.Context, *pglock.Lease) error { t.Error("it ran"); return nil }
	wantErr(t, "Do with a bad name", c.Do(t.Context(), "", must), pglock.ErrInvalidName)
	wantErr(t, "Do without a function", c.Do(t.Context(), "a", nil), pglock.ErrInvalidOption)
	if err := c.Close(soon(t)); err != nil {
		t.Error(err)
	}
	wantErr(t, "Do on a closed client", c.Do(t.Context(), "a", must), pglock.ErrClosed)
}

// The client is closed under the work: it is told, and so is the caller.
func TestDoIsToldOfClose(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := client(t, d)
	var closing <-chan error
	err := c.Do(t.Context(), "a", func(ctx context.Context, l *pglock.Lease) error {
		closing = async(func() error { return c.Close(soon(t)) })
		happens(t, "f's context ends", ctx.Done())
		wantErr(t, "the cause", context.Cause(ctx), pglock.ErrClosed)
		return nil
	})
	wantErr(t, "Do", err, pglock.ErrClosed)
	wantErr(t, "Close", happens(t, "Close returns", closing), nil)
}

func TestDoSaysWhenItsReleaseWasNotConfirmed(t *testing.T) {
	t.Parallel()
	d, p, c := connected(t)
	err := c.Do(t.Context(), lockName, func(context.Context, *pglock.Lease) error {
		p.Stall(pgtest.Both)
		return errWork
	}, pglock.TTL(30*time.Second))
	wantErr(t, "Do", err, pglock.ErrNotReleased)
	wantErr(t, "Do", err, errWork)
	p.Cut()
	p.Resume()
	d.WaitFor(t, isFree, lockName)
}
