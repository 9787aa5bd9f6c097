package pglock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fencedlock/fencedlock/fence"
)

// A Lease is one grant of a lock. Its context ends, with the cause, before the database can grant the lock to anybody else, as
// far as the clocks of this process can tell; its token lets the database refuse what is written after that all the same. A
// Lease ends once and for good: by Release, by a loss, or by Close of its client. All methods are safe for concurrent use; the
// zero Lease behaves as one that was released.
type Lease struct {
	client *Client
	config leaseConfig
	places []place
	id     acquisition
	token  fence.Token
	since  time.Time // by the database's clock
	asked  instant   // before it was granted
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	trust    instant     // the end of what may be trusted without a further renewal
	renewAt  instant     // when the keeper is to renew next
	renewing bool        // the keeper has asked, and not been answered
	failed   int         // renewals in vain since the last one that worked
	failure  error       // of the last of them
	most     instant     // where MaxHold ends it; zero: nowhere
	told     bool        // the listener was asked to hear of its revocation
	final    bool        // no renewal would move trust any more
	lapse    *time.Timer // looks at trust when it may be over
	over     error       // why the lease ended; nil while it is held
	waiters  []chan<- error
}

// newLease makes the handle of a grant and puts it under the client's care.
func newLease(ctx context.Context, c *Client, r *request, a reply) (*Lease, error) {
	l := &Lease{client: c, config: r.leaseConfig, places: a.places, id: r.id, token: a.token, since: a.since, asked: r.firstSent}
	if r.maxHold > 0 {
		l.most = r.firstSent.add(r.maxHold)
	}
	l.trust = l.within(r.trust(a.sent, a.remaining))
	l.ctx, l.cancel = context.WithCancelCause(withLease(context.WithoutCancel(ctx), l))
	left := c.clock.left(l.trust)
	if left <= 0 {
		l.end(l.lost(Expired))
		c.work.surrender(c.work.endOf(r))
		return nil, fmt.Errorf("pglock: lock %q was granted, but the answer came too late to trust it: %w", r.name, l.lost(Expired))
	}
	l.mu.Lock()
	l.plan(a.sent)
	// What is left may be less than the TTL. At once would be in the way of a release that comes at once.
	l.renewAt = sooner(l.renewAt, a.sent.add(max(a.remaining-(r.ttl-r.renewEvery), a.remaining/30)))
	l.lapse = time.AfterFunc(left, l.alarm)
	l.mu.Unlock()
	c.keeper.add(l)
	c.queues.hold(l)
	if l.ended() { // before it was there to be let go
		c.queues.letGo(l, l.Err())
	}
	return l, nil
}

// Name is what is locked; of a lease on several names, all of them with commas between.
func (l *Lease) Name() string { return l.config.name }

// String says which lease this is, for logs.
func (l *Lease) String() string { return fmt.Sprintf("lease %q (token %d)", l.config.name, l.token) }

// Token is the fencing token of the grant: greater than that of every earlier grant of the name, and unchanged by renewals.
func (l *Lease) Token() fence.Token { return l.token }

// Grant is what the helpers of package fence take: of a lease on several names, for the first; see GrantOf. A write that they refuse as stale ends the lease. Once the lease was given
// up, by Release or Close, or its row was deleted, they answer with its Err and send nothing. If it was lost in another way,
// the database decides: a write that comes after its lease is refused when a later grant has written.
func (l *Lease) Grant() fence.Grant {
	if l.client == nil {
		return fence.Grant{}
	}
	return l.grant(l.places[0])
}

// GrantOf is Grant for one of the names of a lease that AcquireAll was granted. For a name that is not among them it is the zero
// Grant, which every fence refuses.
func (l *Lease) GrantOf(name string) fence.Grant {
	for _, p := range l.places {
		if p.name == name {
			return l.grant(p)
		}
	}
	return fence.Grant{}
}

func (l *Lease) has(name string) bool {
	return slices.ContainsFunc(l.places, func(p place) bool { return p.name == name })
}

func (l *Lease) grant(p place) fence.Grant {
	g := fence.Grant{Lock: p.name, Slot: p.slot, Token: l.token}
	if l.config.kind == shared {
		g = g.AsShared()
	}
	return g.InSchema(l.client.cfg.Schema).OnStale(func(error) { l.end(l.lost(Taken)) }).While(l.givenUp)
}

// givenUp is the end of a lease after which no later grant need be there to refuse what is written under it.
func (l *Lease) givenUp() error {
	err := l.Err()
	var lost *LostError
	if errors.As(err, &lost) && lost.Cause != Deleted {
		return nil
	}
	return err
}

// Context carries the values of the ctx that acquired the lease, without its deadline, and is cancelled when the lease ends;
// context.Cause then says why: a *LostError, ErrReleased or ErrClosed. Work that the lease protects runs under it.
func (l *Lease) Context() context.Context {
	if l.client == nil {
		return endedContext
	}
	return l.ctx
}

var errNoLease = fmt.Errorf("%w: a zero Lease was never granted: use one that Acquire returns", ErrReleased)

var endedContext = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errNoLease)
	return ctx
}()

// Done is closed when the lease ends.
func (l *Lease) Done() <-chan struct{} { return l.Context().Done() }

// Err is nil while the lease is held, and then says why it ended: a *LostError, ErrReleased or ErrClosed.
func (l *Lease) Err() error {
	if l.client == nil {
		return errNoLease
	}
	l.look()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

// Valid says whether the lease is held as far as this process can know. It asks both clocks of this process and nobody else,
// so it is as good as a look at a clock: the answer may be old by the time it is used. Only a fence stops a late write.
func (l *Lease) Valid() bool { return l.Err() == nil }

// Deadline is when the lease ends unless a renewal is confirmed before. It moves with each renewal. It is a time of this
// process's clocks, and zero for a lease that has ended.
func (l *Lease) Deadline() time.Time {
	if l.Err() != nil {
		return time.Time{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Add(l.client.clock.left(l.trust))
}

// Renew extends the lease by its TTL now, beside the renewals that the client makes by itself; it is what a lease acquired
// with NoRenewal lives on. It blocks until the database has answered, at most until the lease or ctx ends. A nil error says
// that the lease is held and its deadline has moved; a lease that has ended is never renewed, and the error says why it ended.
// With any other error the lease is held until its deadline, which may yet move: the database may have been asked.
func (l *Lease) Renew(ctx context.Context) error {
	if err := l.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	final := l.final
	l.mu.Unlock()
	if final {
		return fmt.Errorf("pglock: renew lease %q: it is held until its MaxHold of %v is over, and not longer", l.config.name, l.config.maxHold)
	}
	done := make(chan error, 1)
	l.client.keeper.renewNow(l, done)
	select {
	case err := <-done:
		if ended := l.Err(); err != nil && ended != nil {
			return ended // at the same moment
		}
		return prefixed(fmt.Sprintf("renew lease %q", l.config.name), err)
	case <-l.Done():
		return l.Err()
	case <-ctx.Done():
		return fmt.Errorf("pglock: renew lease %q: %w", l.config.name, context.Cause(ctx))
	}
}

// Release ends the lease: at once and for good on this side, whatever the database answers. It then blocks until the database
// has confirmed, at most until ctx ends (5 s if ctx is the lease's own context or comes from it, and so ends here); a ctx that has already ended
// still sends the release, in the background. The error is
//   - nil: the lock is free (but for HoldAtLeast),
//   - a *LostError: the lease had been lost before; what another holds now is untouched,
//   - ErrReleased or ErrClosed: it had ended in that way before, or was never granted (a zero or nil Lease),
//   - one that matches ErrNotReleased and the cause of ctx: not confirmed in time; it is tried until the lease would have
//     ended by itself.
func (l *Lease) Release(ctx context.Context) error {
	if l == nil || l.client == nil { // no lease that was granted
		return errNoLease
	}
	l.look()
	if !l.client.enter() { // Close ends it, and releases it with all the others
		select {
		case <-l.Done():
			return l.Err()
		case <-ctx.Done():
			if err := l.Err(); err != nil {
				return err // ctx is the lease's own
			}
			return fmt.Errorf("%w: lease %q: %w", ErrNotReleased, l.config.name, context.Cause(ctx))
		}
	}
	done := make(chan error, 1)
	before := l.end(&endedError{ErrReleased, l, ": acquire the lock again"})
	var lost *LostError
	switch {
	case before == nil:
		l.client.work.surrender(l.surrender(done))
	case errors.As(before, &lost):
		l.client.work.surrender(l.surrender(nil)) // others need not wait for what the clock has left
	}
	l.client.calls.Done()
	if before != nil {
		return before
	}
	for {
		select {
		case err := <-done:
			return l.released(err)
		case <-ctx.Done():
		}
		if !errors.Is(context.Cause(ctx), ErrReleased) {
			return fmt.Errorf("%w: lease %q: %w", ErrNotReleased, l.config.name, context.Cause(ctx))
		}
		var cancel context.CancelFunc // it is the lease's own, or comes from it
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
	}
}

func (l *Lease) released(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errGone):
		return l.lost(Taken)
	}
	return fmt.Errorf("%w: lease %q: %w", ErrNotReleased, l.config.name, err)
}

func (l *Lease) surrender(done chan<- error) *surrender {
	return &surrender{places: l.places, id: l.id, giveUp: l.client.clock.now().add(l.config.ttl), done: done}
}

func (l *Lease) lost(cause LossCause) *LostError {
	return &LostError{Name: l.config.name, Token: l.token, Cause: cause}
}

// end ends the lease if it is held, and answers why it had ended before, or nil.
func (l *Lease) end(why error) (before error) {
	l.mu.Lock()
	if l.over != nil {
		defer l.mu.Unlock()
		return l.over
	}
	l.over = why
	waiters := l.waiters
	l.waiters = nil
	if l.lapse != nil {
		l.lapse.Stop()
	}
	l.mu.Unlock()
	l.client.keeper.remove(l)
	l.client.queues.letGo(l, why)
	l.cancel(why)
	for _, w := range waiters {
		w <- why
	}
	return nil
}

func (l *Lease) ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over != nil
}

// look ends the lease if trust is over by either clock.
func (l *Lease) look() {
	l.mu.Lock()
	held := l.over == nil && l.client.clock.left(l.trust) > 0
	l.mu.Unlock()
	switch {
	case held:
	case !l.most.isZero() && l.client.clock.left(l.most) <= 0:
		l.end(l.lost(HeldTooLong))
	default:
		l.end(l.expired())
	}
}

// expired is the loss of a lease that nobody else ended.
func (l *Lease) expired() *LostError {
	lost := l.lost(Expired)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed > 0 {
		lost.Renewal = l.failure
	}
	return lost
}

// within keeps trust from going beyond MaxHold.
func (l *Lease) within(trust instant) instant {
	if l.most.isZero() {
		return trust
	}
	return sooner(trust, l.most)
}

// plan says when to renew next, after what was sent then. The last renewal lets trust last until MaxHold. The caller has locked the
// lease.
func (l *Lease) plan(sent instant) {
	l.renewAt = sent.add(l.config.renewEvery)
	if l.most.isZero() {
		return
	}
	last := l.most.add(margin(l.config.ttl) - l.config.ttl)
	l.final = sent.mono >= last.mono
	l.renewAt = sooner(l.renewAt, last)
}

// isRenewed says whether the keeper is to renew it, or to ask for somebody who wants to know. The caller has locked the lease.
func (l *Lease) isRenewed() bool { return len(l.waiters) > 0 || !l.final && !l.config.manual }

// alarm is called when trust may be over. Renewals move trust and leave the timer alone: here it is set anew.
func (l *Lease) alarm() {
	l.look()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over == nil {
		l.lapse.Reset(max(l.client.clock.left(l.trust), 0))
	}
}
