package deadline_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencedlock/fencedlock/internal/deadline"
)

// A late context has a deadline, and ends when it is told to.
type late struct {
	context.Context
	at time.Time
}

func (l late) Deadline() (time.Time, bool) { return l.at, true }

func TestTheEndOfAContextIsWaitedForWhenItIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("over")
		ctx, end := context.WithCancelCause(t.Context())
		cause := make(chan error, 1)
		go func() { cause <- deadline.Cause(late{ctx, time.Now()}) }()
		synctest.Wait()
		if len(cause) > 0 {
			t.Fatalf("Cause = %v, before the end", <-cause)
		}
		if err := deadline.Cause(late{ctx, time.Now().Add(1)}); err != nil {
			t.Errorf("Cause = %v before the deadline, want nil", err)
		}
		end(why)
		if err := <-cause; err != why { //nolint:errorlint // the very error
			t.Errorf("Cause = %v, want that of the context", err)
		}
		if err := deadline.Cause(t.Context()); err != nil {
			t.Errorf("Cause = %v without a deadline, want nil", err)
		}
	})
}
