package advisory_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock/advisory"
)

func TestDoReleasesHoweverTheFunctionEnds(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	c := client(t, d)
	key := advisory.Name("a")
	errWork := errors.New("the work failed")
	wantErr(t, "Do", c.Do(soon(t), key, func(context.Context) error { return errWork }), errWork)

	ctx, cancel := context.WithCancelCause(soon(t))
	err := c.Do(ctx, key, func(ctx context.Context) error {
		cancel(errWork)
		happens(t, "the end of the function's context", ctx.Done())
		if n := locks(t, d); n != 1 {
			t.Errorf("%d locks are held while the function winds down", n)
		}
		return context.Cause(ctx)
	})
	wantErr(t, "Do with a ctx that ends", err, errWork)
	if n := locks(t, d); n != 0 {
		t.Errorf("%d locks are left", n)
	}

	panicked := async(func() (v any) {
		defer func() { v = recover() }()
		return c.Do(soon(t), key, func(context.Context) error { panic("at the disco") })
	})
	if v := happens(t, "the panic", panicked); v != "at the disco" {
		t.Errorf("Do of a function that panics: %v", v)
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = c.Do(soon(t), key, func(context.Context) error { runtime.Goexit(); return nil })
	}()
	happens(t, "the end of the goroutine", exited)
	if n := locks(t, d); n != 0 {
		t.Errorf("%d locks are left", n)
	}
}

// It could only wait for itself. Another lock it may have, and this one too, when it is free again.
func TestWhatTheCallerHoldsIsRefusedAndNotWaitedFor(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	c := client(t, d)
	key := advisory.Name("a")
	done := func(context.Context) error { return nil }
	var after context.Context
	wantErr(t, "Do", c.Do(soon(t), key, func(ctx context.Context) error {
		wantErr(t, "Do in a Do", c.Do(ctx, key, done), advisory.ErrReentrant)
		_, err := c.TryAcquire(ctx, key)
		wantErr(t, "TryAcquire in a Do", err, advisory.ErrReentrant)
		wantErr(t, "another Do in a Do", c.Do(ctx, advisory.Name("b"), func(ctx context.Context) error {
			return c.Do(ctx, key, done)
		}), advisory.ErrReentrant)
		after = context.WithoutCancel(ctx)
		return c.Do(ctx, advisory.Name("b"), done)
	}), nil)
	wantErr(t, "Do after the Do", c.Do(after, key, done), nil)
}

func TestInputThatCannotWorkIsRefused(t *testing.T) {
	t.Parallel()
	c := nowhere(t)
	key := advisory.Name("a")
	_, err := c.TryAcquire(soon(t), key, advisory.Option{})
	wantErr(t, "a zero Option", err, advisory.ErrInvalidOption)
	wantErr(t, "Do without a function", c.Do(soon(t), key, nil), advisory.ErrInvalidOption)
	_, err = advisory.New(nil, advisory.Config{})
	wantErr(t, "New without a pool", err, advisory.ErrInvalidOption)
	_, err = advisory.Open("postgres://x y", advisory.Config{})
	wantErr(t, "Open of nonsense", err, advisory.ErrInvalidOption)
	for _, every := range []time.Duration{-1, 1, time.Hour} {
		_, err = advisory.Open("", advisory.Config{CheckEvery: every})
		wantErr(t, "a CheckEvery that cannot work", err, advisory.ErrInvalidOption)
	}
	_, err = advisory.List(soon(t), nil)
	wantErr(t, "List without a database", err, advisory.ErrInvalidOption)
	_, err = advisory.List(soon(t), (*pgxpool.Pool)(nil))
	wantErr(t, "List of a nil pool", err, advisory.ErrInvalidOption)

	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = c.Acquire(ended, key)
	wantErr(t, "Acquire with a ctx that has ended", err, context.Canceled)
}

// A hook that leaves a transaction open is refused: the lock would hold its snapshot for as long as it is held.
func TestAHookThatLeavesATransactionOpenIsToldSo(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	pc, err := pgxpool.ParseConfig(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	pc.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error { _, err := conn.Exec(ctx, `BEGIN`); return err }
	pool, err := pgxpool.NewWithConfig(t.Context(), pc)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	c, err := advisory.New(pool, advisory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = c.TryAcquire(soon(t), advisory.Name("a")); err == nil || !strings.Contains(err.Error(), "leaves a transaction open") {
		t.Errorf("TryAcquire = %v, want what the hook has done", err)
	}
	wantErr(t, "Close", c.Close(soon(t)), nil)
}
