package pglock

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/jackc/pgx/v5"
)

const (
	// observePoll is between two looks at who leads, where nothing in this process says that it has changed.
	observePoll = time.Second

	// observeTimeout bounds one look, so that a database that went silent is told of.
	observeTimeout = 5 * time.Second
)

// A Leader is who leads.
type Leader struct {
	Owner string      // the label of its client, as its Config.Owner has it
	Token fence.Token // of its term
	Since time.Time   // when it was elected, by the database's clock
}

// Leader answers who leads, as the database has it; ErrNoLeader if nobody does. A leader that vanished counts until the end of its
// lease. The node need not be a candidate; the role needs no more than to take locks (grant_locker), or to inspect them
// (grant_auditor). It blocks and fails as Inspect does.
func (e *Elector) Leader(ctx context.Context) (Leader, error) {
	l, _, err := e.look(ctx)
	return l, err
}

// look also answers how much the leader's lease has left.
func (e *Elector) look(ctx context.Context) (Leader, time.Duration, error) {
	status := func(row pgx.CollectableRow) (s Status, err error) {
		var since, remaining int64
		err = row.Scan(&s.Held, &s.Owner, &s.Token, &since, &remaining)
		s.Since, s.Remaining = time.UnixMicro(since), microseconds(remaining)
		return s, err
	}
	found, err := collect(ctx, e.client, call{fmt.Sprintf("leader of election %q", e.name), locker}, status, pinTimeouts, statement{sql: e.client.in(holderSQL), args: []any{e.name}})
	switch {
	case err != nil:
		return Leader{}, 0, err
	case !found[0].Held:
		return Leader{}, 0, fmt.Errorf("%w: election %q", ErrNoLeader, e.name)
	}
	s := found[0]
	return Leader{Owner: s.Owner, Token: s.Token, Since: s.Since}, s.Remaining, nil
}

// Observe yields what Leader answers: at once, and then each time that it has become another answer, until ctx ends or the loop is left.
// What happens in this process is seen at once, other changes when it looks again, every second or so; those that were
// over by then are not seen. Each error is told once, until Leader answers again; one that waiting does not cure ends the
// sequence. It works on the goroutine of the caller: a slow one misses changes, and holds up nobody. While it runs it uses a
// connection as Inspect does.
func (e *Elector) Observe(ctx context.Context) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		told := unseen
		var last Leader
		for {
			e.mu.Lock()
			changed := e.changed // before the look, so that nothing is missed between
			e.mu.Unlock()
			l, rest, err := e.observe(ctx)
			if ctx.Err() != nil {
				return
			}
			if s := sighted(err); s != told || l.Token != last.Token || hopeless(err) {
				told, last = s, l
				if !yield(l, err) || hopeless(err) {
					return
				}
			}
			if e.sleep(ctx, rest, changed) != nil && ctx.Err() != nil {
				return // if the client is closing, the next look says so
			}
		}
	}
}

// observe makes one look, and says how long to wait before the next.
func (e *Elector) observe(ctx context.Context) (l Leader, rest time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	l, left, err := e.look(ctx)
	rest = jitter(observePoll)
	if err == nil { // it may be over before
		rest = min(rest, left+jitter(5*time.Millisecond))
	}
	return l, rest, err
}

// A sight is the sort of what Observe told last.
type sight int

const (
	unseen sight = iota
	leader
	noLeader
	unknown
)

func sighted(err error) sight {
	switch {
	case err == nil:
		return leader
	case errors.Is(err, ErrNoLeader):
		return noLeader
	}
	return unknown
}
