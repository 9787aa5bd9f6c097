package pglock

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/jackc/pgx/v5"
)

// A batch is one round trip and one transaction: ends of grants first, so that what they free can be granted.
type batch struct {
	requests []*request
	ends     []*surrender
}

func (b batch) empty() bool { return len(b.requests)+len(b.ends) == 0 }

// maxSends bounds how often one batch is sent when its connection breaks or the server asks to try again.
const maxSends = 3

// settle sends a batch until its outcome is known, and answers everybody in it. When the connection broke after sending, the
// outcome is unknown: the same acquisitions are sent again, each finds its own grant or is granted now. What stays unknown is
// answered with the error, and ended later.
func (w *workLine) settle(ctx context.Context, b batch) {
	unknown := false // whether some sending may have committed
	for try := 1; ; try++ {
		b = w.withoutDead(b, unknown)
		if b.empty() {
			return
		}
		err := w.send(ctx, &b, unknown)
		switch {
		case err == nil:
			return
		case errors.Is(err, errUnconfirmed):
			w.disown(b)
			return
		case poisoned(err) && len(b.requests)+len(b.ends) > 1:
			for _, r := range b.requests {
				w.settle(ctx, batch{requests: []*request{r}})
			}
			for _, s := range b.ends {
				w.settle(ctx, batch{ends: []*surrender{s}})
			}
			return
		case mispooled(err) && !w.session.pooled:
			w.session.mispooled()
			continue
		}
		notConnected := errors.As(err, new(*connectError))
		if w.session.broken() && !notConnected {
			unknown = true
			for _, s := range b.ends {
				s.unsure = true
			}
		}
		if readOnly(err) {
			w.session.drop() // the next connection may find the primary
		}
		err = explain(w.client.cfg.Schema, err)
		if try == maxSends || notConnected || hopeless(err) || errors.Is(err, ErrReadOnly) || ctx.Err() != nil {
			w.fail(b, err, unknown)
			return
		}
		w.client.log.Debug("pglock: sending again", "error", err)
	}
}

// A connectError comes before anything was sent.
type connectError struct{ err error }

func (e *connectError) Error() string { return "pglock: connect: " + e.err.Error() }
func (e *connectError) Unwrap() error { return e.err }

// withoutDead drops the requests that nobody waits for, and those whose lease would be over before it begins. What they may
// have been granted by an earlier sending is ended in the same batch.
func (w *workLine) withoutDead(b batch, unknown bool) batch {
	alive := b.requests[:0:0]
	for _, r := range b.requests {
		late := !r.firstSent.isZero() && w.client.clock.left(r.trust(r.firstSent, r.ttl)) <= 0
		if !late && !r.isAbandoned() {
			alive = append(alive, r)
			continue
		}
		r.answer(reply{status: "spent"})
		if unknown {
			b.ends = append(b.ends, w.endOf(r))
		}
	}
	b.requests = alive
	return b
}

// send makes one attempt, and answers everybody if it committed. What died while it was connecting leaves the batch: another
// may have been granted the lock since, and then the database knows the id no more and would grant it a second time.
func (w *workLine) send(ctx context.Context, b *batch, unknown bool) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	if err := w.session.ready(ctx); err != nil {
		return &connectError{err}
	}
	if *b = w.withoutDead(*b, unknown); b.empty() {
		return nil
	}
	replies := make([]reply, len(b.requests))
	outcomes := make([]string, len(b.ends))
	var calls []statement
	if len(b.ends) > 0 {
		calls = append(calls, w.releaseCall(*b, outcomes))
	}
	if len(b.requests) > 0 {
		calls = append(calls, w.acquireCall(*b, replies))
	}
	sent := w.client.clock.now()
	for _, r := range b.requests {
		if r.firstSent.isZero() {
			r.firstSent = sent
		}
	}
	if err := w.session.run(ctx, calls...); err != nil {
		if w.session.broken() {
			w.session.drop()
		}
		return err
	}
	w.failing = false
	for i, r := range b.requests {
		replies[i].sent = sent
		w.deliver(r, replies[i])
	}
	for i, s := range b.ends {
		w.conclude(s, outcomes[i])
	}
	return nil
}

func (w *workLine) acquireCall(b batch, replies []reply) statement {
	n := len(b.requests)
	names, ids, ttls := make([]string, n), make([]acquisition, n), make([]int64, n)
	holds, metas := make([]int64, n), make([]*string, n)
	var anyHold, anyMeta bool
	for i, r := range b.requests {
		names[i], ids[i], ttls[i] = r.name, r.id, r.ttl.Microseconds()
		holds[i], metas[i] = r.holdAtLeast.Microseconds(), r.metadata
		anyHold, anyMeta = anyHold || r.holdAtLeast > 0, anyMeta || r.metadata != nil
	}
	if !anyHold { // rarely used: nothing to send and to look at
		holds = nil
	}
	if !anyMeta {
		metas = nil
	}
	c := w.client
	return statement{c.sql.acquire, []any{names, ids, c.cfg.Owner, ttls, holds, metas, c.seen.Load()}, func(rows pgx.Rows) error {
		var ord int
		var since, remaining int64
		var a reply
		if err := rows.Scan(&ord, &a.status, &a.token, &a.owner, &since, &remaining); err != nil {
			return err
		}
		a.since, a.remaining = time.UnixMicro(since), microseconds(remaining)
		replies[ord-1] = a
		return nil
	}}
}

func (w *workLine) releaseCall(b batch, outcomes []string) statement {
	names, ids := make([]string, len(b.ends)), make([]acquisition, len(b.ends))
	for i, s := range b.ends {
		names[i], ids[i] = s.name, s.id
	}
	// Losing a release in a crash costs others the rest of a TTL, and a flush for each costs everybody: it need not be durable
	// when it travels alone.
	deferred := len(b.requests) == 0
	return statement{w.client.sql.release, []any{names, ids, deferred}, func(rows pgx.Rows) error {
		var ord int
		var status string
		if err := rows.Scan(&ord, &status); err != nil {
			return err
		}
		outcomes[ord-1] = status
		return nil
	}}
}

// deliver hands a committed reply over. A grant that nobody waits for any more is given back.
func (w *workLine) deliver(r *request, a reply) {
	if a.status == "granted" {
		w.client.sawToken(a.token)
	}
	if !r.answer(a) && a.status == "granted" {
		w.surrender(w.endOf(r))
	}
}

func (w *workLine) conclude(s *surrender, status string) {
	switch status {
	case "released":
		s.finish(nil)
	case "locked": // a renewal in flight, or somebody's hand
		w.later(s, ErrNotReleased)
	default:
		if s.unsure { // by that sending, then
			s.finish(nil)
			return
		}
		s.finish(errGone)
	}
}

// errGone: the grant was over before it was released.
var errGone = errors.New("pglock: the grant was over before")

// disown treats everything that was granted as unknown: it committed here, but may be lost with this server.
func (w *workLine) disown(b batch) {
	w.client.log.Warn("pglock: grants given back", "reason", errUnconfirmed)
	for _, r := range b.requests {
		r.answer(reply{status: "spent"})
		w.surrender(w.endOf(r))
	}
	for _, s := range b.ends {
		s.finish(nil)
	}
}

// fail answers everybody with the error. What may have been granted all the same is ended later.
func (w *workLine) fail(b batch, err error, unknown bool) {
	level := slog.LevelWarn
	if w.failing {
		level = slog.LevelDebug // said before
	}
	w.failing = true
	w.client.log.Log(context.Background(), level, "pglock: cannot acquire or release", "error", err)
	for _, r := range b.requests {
		r.answer(reply{err: err})
		if unknown {
			w.surrender(w.endOf(r))
		}
	}
	for _, s := range b.ends {
		if hopeless(err) {
			s.finish(err)
			continue
		}
		w.later(s, err)
	}
}

// endOf ends what a request was granted, or may have been, without anybody waiting for it.
func (w *workLine) endOf(r *request) *surrender {
	return &surrender{name: r.name, id: r.id, giveUp: w.client.clock.now().add(r.ttl)}
}

// sawToken remembers the latest token: a database that has drawn less has lost its memory.
func (c *Client) sawToken(t fence.Token) {
	for {
		seen := c.seen.Load()
		if int64(t) <= seen || c.seen.CompareAndSwap(seen, int64(t)) {
			return
		}
	}
}
