package pglock_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/jackc/pgx/v5"
)

// Whoever reads an error in a log has to know which lock it is about, and what to do.
func TestErrorsNameTheLock(t *testing.T) {
	t.Parallel()
	const name = "reports/nightly"
	d := pgtest.DB(t)
	names := func(what string, err, target error, next string) {
		t.Helper()
		wantErr(t, what, err, target)
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), next) {
			t.Errorf("%s = %v, want it to name lock %q, and to say %q", what, err, name, next)
		}
	}
	ended := func(l *pglock.Lease, target error) {
		t.Helper()
		names("Err", l.Err(), target, "acquire")
		names("the cause of the context", context.Cause(l.Context()), target, "acquire")
		names("Renew", l.Renew(soon(t)), target, "acquire")
		names("Release", l.Release(soon(t)), target, "acquire")
		names("a fenced write", fence.HeldTx(t.Context(), d.Conn(t), l.Grant(), func(context.Context, pgx.Tx) error { return nil }), target, "acquire")
	}
	c := client(t, d)
	l := take(t, c, name)
	release(t, l)
	ended(l, pglock.ErrReleased)
	l = take(t, c, name)
	wantErr(t, "HeldTx", fence.HeldTx(t.Context(), d.Conn(t), l.Grant(), func(ctx context.Context, _ pgx.Tx) error {
		_, err := c.TryAcquire(ctx, name)
		names("TryAcquire in a transaction that holds the lock", err, pglock.ErrOwnTransaction, "before the transaction")
		return nil
	}), nil)

	resigned := make(chan error, 1)
	e, err := pglock.NewElector(client(t, d), "the leader of "+name, pglock.ElectorConfig{})
	wantErr(t, "NewElector", err, nil)
	leads := make(chan struct{})
	ctx, stop := context.WithCancel(soon(t))
	running := async(func() error {
		return e.Run(ctx, func(ctx context.Context, _ *pglock.Lease) error {
			close(leads)
			<-ctx.Done()
			resigned <- context.Cause(ctx)
			stop() // before another term
			return pglock.ErrResigned
		})
	})
	happens(t, "it leads", leads)
	wantErr(t, "Resign", e.Resign(soon(t)), nil)
	names("the cause of a term that was resigned", happens(t, "the term ends", resigned), pglock.ErrResigned, "election")
	wantErr(t, "Run", happens(t, "Run ends", running), context.Canceled)

	_, err = c.TryAcquire(t.Context(), name, pglock.Option{})
	names("TryAcquire with a zero Option", err, pglock.ErrInvalidOption, "zero Option")
	names("Do without a function", c.Do(t.Context(), name, nil), pglock.ErrInvalidOption, "without a function")
	wantErr(t, "Close", c.Close(soon(t)), nil)
	ended(l, pglock.ErrClosed)
	if err := new(pglock.Lease).Err(); !errors.Is(err, pglock.ErrReleased) || !strings.Contains(err.Error(), "zero Lease") {
		t.Errorf("Err of a zero Lease = %v", err)
	}
}
