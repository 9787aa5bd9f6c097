package pglock

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/fencedlock/fencedlock/fence"
)

// A PanicError is the panic of a lead, as the error of Elector.Run. It matches the value, if that is an error.
type PanicError struct {
	Value any    // what lead panicked with
	Stack []byte // where

	election string
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("pglock: election %q: lead panicked: %v\n\n%s", e.election, e.Value, e.Stack)
}

// Unwrap is the value of the panic, if that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// A term is one candidacy, and what it leads to.
type term struct {
	end  context.CancelCauseFunc
	over chan struct{} // closed when lead has returned and the lease was released
	err  error         // of Do, once over

	// Under Elector.mu.
	lease *Lease // while lead runs
	led   bool   // lead was called
}

// candidacy begins a term, once this node does not abstain. An error says that Run is to end.
func (e *Elector) candidacy(ctx context.Context) (context.Context, *term, error) {
	tctx, end := context.WithCancelCause(ctx)
	t := &term{end: end, over: make(chan struct{})}
	for {
		e.mu.Lock()
		if !e.abstains {
			e.term = t
			e.mu.Unlock()
			return tctx, t, nil
		}
		changed := e.changed
		e.mu.Unlock()
		if err := e.sleep(ctx, time.Hour, changed); err != nil {
			end(nil)
			return nil, nil, err
		}
	}
}

// serve waits for the lock, leads under it, and says after how long to try again. An error says that Run is to end. tctx is the
// term's: it ends with ctx, or when somebody ends the term.
func (e *Elector) serve(ctx, tctx context.Context, t *term, lead func(context.Context, *Lease) error) (again time.Duration, err error) {
	defer close(t.over)
	defer t.end(nil)
	defer e.update(func() { e.term = nil })
	var ended, answer error
	t.err = e.client.Do(tctx, e.name, func(lctx context.Context, l *Lease) error {
		if tctx.Err() != nil { // at the moment of the grant
			return nil
		}
		ended, answer = e.lead(lctx, tctx, t, l, lead)
		return answer
	}, e.options...)
	switch {
	case !t.led && tctx.Err() == nil: // the lock cannot be had
		return 0, t.err
	case answer != nil && !saysOnly(answer, ended):
		return 0, t.err
	case ctx.Err() != nil:
		return 0, e.shutDown(ctx, t)
	case errors.Is(t.err, ErrClosed):
		return 0, prefixed(fmt.Sprintf("election %q", e.name), ErrClosed)
	case errors.Is(t.err, ErrNotReleased):
		e.client.log.Warn("pglock: a term is over, but its release is not confirmed yet", "election", e.name, "error", t.err)
	case errors.Is(ended, ErrLost):
		return 0, nil
	}
	return jitter(e.pause), nil
}

// lead calls the function, and answers why its context had ended when it returned, and what it returned.
func (e *Elector) lead(ctx, tctx context.Context, t *term, l *Lease, f func(context.Context, *Lease) error) (ended, answer error) {
	e.update(func() { t.lease, t.led = l, true })
	returned := make(chan struct{})
	var limit sync.WaitGroup
	limit.Go(func() { e.limit(tctx, l, returned) })
	defer limit.Wait()
	defer close(returned)
	defer e.update(func() { t.lease = nil })
	defer func() {
		ended = context.Cause(ctx)
		if v := recover(); v != nil {
			answer = &PanicError{v, debug.Stack(), e.name}
		}
	}()
	return nil, f(ctx, l)
}

// limit lets the lease lapse when its term has ended and lead has not returned in time.
func (e *Elector) limit(tctx context.Context, l *Lease, returned <-chan struct{}) {
	select {
	case <-tctx.Done():
	case <-returned:
		return
	}
	timer := time.NewTimer(e.windDown)
	defer timer.Stop()
	select {
	case <-timer.C:
		e.client.log.Error("pglock: lead was told to stop and has not returned: its lease is not renewed any more", "election", e.name, "after", e.windDown)
		l.letLapse()
	case <-returned:
	}
}

// letLapse stops the renewals of a lease: it ends at its deadline, unless it is released before.
func (l *Lease) letLapse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.config.manual = true
}

// shutDown is the error of Run when its ctx has ended: with what the last term came to, if there is more to say.
func (e *Elector) shutDown(ctx context.Context, t *term) error {
	switch {
	case !t.led && t.err != nil:
		return t.err // it matches the cause, and says who leads
	case errors.Is(t.err, ErrNotReleased), errors.Is(t.err, ErrLost):
		return errors.Join(e.stopped(ctx), t.err)
	}
	return e.stopped(ctx)
}

// saysOnly says whether an error of lead is no more than that its context has ended.
func saysOnly(answer, ended error) bool {
	if ended == nil || errors.As(answer, new(*PanicError)) {
		return false
	}
	for _, end := range []error{ended, context.Canceled, ErrLost, fence.ErrStale} {
		if errors.Is(answer, end) {
			return true
		}
	}
	for _, end := range []error{ErrResigned, ErrReleased, ErrClosed} { // or says no more than which kind of end that was
		if errors.Is(ended, end) && errors.Is(answer, end) {
			return true
		}
	}
	return false
}
