package pglock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// electorPause is longer than it takes those who wait to ask again, also where no release wakes them.
	electorPause = time.Second

	// electorWindDown is what most supervisors give a process to end in.
	electorWindDown = 30 * time.Second
)

// An Elector is one node's part in the election of a leader: of all that run for one name, one leads at a time, as the holder of
// the lock of that name. Whoever asks first when the lock is free is elected; there are no priorities, since a node cannot know
// whether a better one is there, and a leader that made way for it would cost a time without one. All methods are safe for
// concurrent use.
type Elector struct {
	client          *Client
	name            string
	options         []Option
	pause, windDown time.Duration

	mu       sync.Mutex
	running  bool
	abstains bool
	term     *term         // the candidacy or term under way; nil between them
	changed  chan struct{} // closed, and made anew, when one of these changes
}

// ElectorConfig tunes an Elector. The zero value is ready to use.
type ElectorConfig struct {
	// TTL is how long a leader that vanished goes on counting, and so how long a crash leaves nobody in charge. Default: that of
	// the client.
	TTL time.Duration

	// Pause is between the end of a term, by lead's or by Resign, and the next candidacy of this node, so that another may win:
	// between half of it and one and a half of it. Default: 1 s.
	Pause time.Duration

	// WindDown is how long the lease goes on being renewed after lead was told to stop, by Run's ctx, Resign or Abstain. If lead
	// has not returned by then, the renewals stop, and the lease lapses within a TTL: others lead then, whatever still runs
	// here. Default: 30 s.
	WindDown time.Duration

	// Metadata is stored with the leader's lease, for people who inspect it: see the option Metadata. Nil: nothing.
	Metadata any
}

// NewElector makes one node's part in the election of that name, which follows the rules of lock names: a lock and an election of one
// name are the same. Its nodes are told apart by Config.Owner of their clients. It sends nothing. The error is ErrInvalidName or
// ErrInvalidOption.
func NewElector(c *Client, name string, cfg ElectorConfig) (*Elector, error) {
	if c == nil {
		return nil, fmt.Errorf("%w: the client of the elector is nil", ErrInvalidOption)
	}
	if cfg.Pause < 0 || cfg.WindDown < 0 || cfg.TTL < 0 || max(cfg.Pause, cfg.WindDown) > maxHold {
		return nil, fmt.Errorf("%w: the elector of %q has a duration that is negative, or longer than %v", ErrInvalidOption, name, maxHold)
	}
	e := &Elector{
		client: c, name: name, changed: make(chan struct{}),
		pause: cmp.Or(cfg.Pause, electorPause), windDown: cmp.Or(cfg.WindDown, electorWindDown),
	}
	if cfg.TTL > 0 {
		e.options = append(e.options, TTL(cfg.TTL))
	}
	if cfg.Metadata != nil {
		e.options = append(e.options, Metadata(cfg.Metadata))
	}
	_, err := c.leaseConfig([]string{name}, e.options)
	return e, err
}

// Run is a candidate until ctx ends. When elected it calls lead, on its own goroutine, and waits for it; then the lease is released,
// and the node is a candidate again. While another leads it only waits, as Acquire does, through outages and failovers too, and
// logs nothing.
//
// lead's context ends before another can lead, as far as the clocks of this process can tell; what lead writes after that all the
// same is for the fence to refuse (Lease.Grant). context.Cause says why it ended: a *LostError, ErrResigned, ErrClosed, or the cause
// of ctx. lead must return then, soon. Until it has returned, and for ElectorConfig.WindDown at the longest, the lease is renewed
// and released only afterwards, so that no successor begins before; a lease is never released under a lead that still runs.
//
//   - lead returns nil: the term is over, and the next candidacy begins after ElectorConfig.Pause. So it does after Resign.
//   - The lease is lost: once lead has returned, the next candidacy begins at once.
//   - lead returns an error: Run ends with it. It does not if the term's context had ended and the error says only that: it
//     matches context.Canceled, the cause, ErrLost or fence.ErrStale.
//   - lead panics: the lease is released, and Run ends with a *PanicError. runtime.Goexit releases it and goes on.
//   - ctx ends: the error matches its cause, and ErrNotReleased where the release was not confirmed within 5 s.
//   - What Acquire does not wait through, a missing schema or a closed client, say, ends Run with that error.
//
// When Run returns, nothing of it is left running. It may be called again then, and is refused with ErrInvalidOption while it runs.
func (e *Elector) Run(ctx context.Context, lead func(ctx context.Context, l *Lease) error) error {
	if lead == nil {
		return fmt.Errorf("%w: the election %q is run without a function", ErrInvalidOption, e.name)
	}
	if !e.start() {
		return fmt.Errorf("%w: the election %q is run twice at once by one elector", ErrInvalidOption, e.name)
	}
	defer e.update(func() { e.running = false })
	for {
		tctx, t, err := e.candidacy(ctx)
		if err != nil {
			return err
		}
		again, err := e.serve(ctx, tctx, t, lead)
		if err != nil {
			return err
		}
		if err := e.sleep(ctx, again, nil); err != nil {
			return err
		}
	}
}

func (e *Elector) start() (first bool) {
	e.update(func() { first = !e.running; e.running = true })
	return first
}

// update changes the state, and tells those who look at it.
func (e *Elector) update(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
	close(e.changed)
	e.changed = make(chan struct{})
}

// sleep waits for so long, or for a change; an error says that Run is to end.
func (e *Elector) sleep(ctx context.Context, d time.Duration, changed <-chan struct{}) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-changed:
		return nil
	case <-ctx.Done():
		return e.stopped(ctx)
	case <-e.client.closing.Done():
		return prefixed(fmt.Sprintf("election %q", e.name), ErrClosed)
	}
}

// stopped is the error of a Run whose ctx has ended.
func (e *Elector) stopped(ctx context.Context) error {
	return fmt.Errorf("pglock: election %q: %w", e.name, context.Cause(ctx))
}

// IsLeader says whether this node leads: lead was called and has not returned, and its lease is held as far as this process can
// know. Like Lease.Valid it asks two clocks and nobody else, and may be old by the time it is used.
func (e *Elector) IsLeader() bool {
	l := e.leading()
	return l != nil && l.Valid()
}

// Health is nil unless lead still runs although its lease is over: another may lead then. A lead that is told of a loss has it
// fail for as long as it takes to return; one that does not return has it fail until somebody restarts the process. The error
// matches the end of the lease: ErrLost, say. It sends nothing.
func (e *Elector) Health() error {
	l := e.leading()
	if l == nil {
		return nil
	}
	if err := l.Err(); err != nil && e.leading() == l { // and lead has not just returned
		return fmt.Errorf("pglock: election %q: lead still runs, and must stop: %w", e.name, err)
	}
	return nil
}

// leading is the lease under which lead runs; nil if it does not.
func (e *Elector) leading() *Lease {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.term == nil {
		return nil
	}
	return e.term.lease
}

// Resign ends the present term of this node, if there is one: lead's context ends with ErrResigned, lead is waited for, and the
// lease is released, so that another may lead at once. This node is a candidate again after ElectorConfig.Pause. It blocks until the
// lease is released, at most until ctx ends: the term ends all the same then, and the error matches the cause of ctx. The
// error matches ErrNotReleased if the database did not confirm. It is not for lead itself, which returns nil instead.
func (e *Elector) Resign(ctx context.Context) error {
	e.mu.Lock()
	t := e.term
	leads := t != nil && t.led
	e.mu.Unlock()
	if !leads {
		return nil
	}
	return e.await(ctx, t)
}

// Abstain keeps this node from leading until Stand is called: it ends its present term as Resign does, or its waiting, and is no
// candidate. Run goes on. It may be called before Run. It blocks and fails as Resign does. A node that is never to lead need not
// run: Leader and Observe work without.
func (e *Elector) Abstain(ctx context.Context) error {
	var t *term
	e.update(func() { e.abstains = true; t = e.term })
	if t == nil {
		return nil
	}
	return e.await(ctx, t)
}

// Stand makes this node a candidate again, after Abstain.
func (e *Elector) Stand() { e.update(func() { e.abstains = false }) }

// await ends a candidacy or term, and waits for its end.
func (e *Elector) await(ctx context.Context, t *term) error {
	t.end(fmt.Errorf("%w: election %q", ErrResigned, e.name))
	select {
	case <-t.over:
	case <-ctx.Done():
		return fmt.Errorf("pglock: election %q: resigned, but lead has not returned: %w", e.name, context.Cause(ctx))
	}
	if errors.Is(t.err, ErrNotReleased) {
		return t.err
	}
	return nil
}
