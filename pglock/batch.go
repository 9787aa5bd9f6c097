package pglock

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// A batch is one round trip and one transaction: ends of grants first, so that what they free can be granted.
type batch struct {
	requests []*request
	ends     []*surrender
	notes    []*note // not part of it: they follow in a transaction of their own
}

func (b batch) size() int { return len(b.requests) + len(b.ends) }

// A connectError comes before anything was sent.
type connectError struct{ err error }

func (e *connectError) Error() string { return "connect: " + e.err.Error() }
func (e *connectError) Unwrap() error { return e.err }

// send makes one attempt, and answers everybody if it committed. What died while it was connecting leaves the batch: another
// may have been granted the lock since, and then the database knows the id no more and would grant it a second time.
func (w *workLine) send(ctx context.Context, b *batch) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	if err := w.session.ready(ctx); err != nil {
		return &connectError{err}
	}
	if *b = w.withoutDead(*b); b.size() == 0 {
		return nil
	}
	replies := make([]reply, len(b.requests))
	outcomes := make([]string, len(b.ends))
	var call statement
	switch {
	case len(b.requests) == 0:
		call = w.releaseCall(*b, outcomes)
	case len(b.ends) == 0:
		call = w.acquireCall(*b, replies)
	default:
		call = w.exchangeCall(*b, outcomes, replies)
	}
	sent := w.client.clock.now()
	for _, r := range b.requests {
		if r.firstSent.isZero() {
			r.firstSent = sent
		}
	}
	if err := w.session.run(ctx, call); err != nil {
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
	return statement{w.client.sql.acquire, w.requestArgs(b), into(replies)}
}

// into reads the answers of acquire, and of what answers like it.
func into(replies []reply) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var ord int
		var since, remaining int64
		var a reply
		if err := rows.Scan(&ord, &a.status, &a.token, &a.owner, &since, &remaining); err != nil {
			return err
		}
		a.since, a.remaining = time.UnixMicro(since), microseconds(remaining)
		replies[ord-1] = a
		return nil
	}
}

func (w *workLine) requestArgs(b batch) []any {
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
	return []any{names, ids, w.client.cfg.Owner, ttls, holds, metas, w.client.seen.Load()}
}

func (w *workLine) releaseCall(b batch, outcomes []string) statement {
	names, ids, unheld := endArgs(b)
	// Losing a release in a crash costs others the rest of a TTL, and a flush for each costs everybody: it need not be durable
	// when it travels alone.
	const deferred = true
	return statement{w.client.sql.release, []any{names, ids, deferred, unheld}, func(rows pgx.Rows) error {
		var ord int
		var status string
		if err := rows.Scan(&ord, &status); err != nil {
			return err
		}
		outcomes[ord-1] = status
		return nil
	}}
}

func endArgs(b batch) (names []string, ids []acquisition, unheld []bool) {
	for _, s := range b.ends {
		names, ids, unheld = append(names, s.name), append(ids, s.id), append(unheld, s.unheld)
	}
	return names, ids, unheld
}

func (w *workLine) exchangeCall(b batch, outcomes []string, replies []reply) statement {
	names, ids, unheld := endArgs(b)
	args := append([]any{names, ids, unheld}, w.requestArgs(b)...)
	return statement{w.client.sql.exchange, args, func(rows pgx.Rows) error {
		var ord int
		var since, remaining int64
		var a reply
		var ended bool
		if err := rows.Scan(&ord, &a.status, &a.token, &a.owner, &since, &remaining, &ended, &a.awaited); err != nil {
			return err
		}
		if ended {
			outcomes[ord-1] = a.status
			return nil
		}
		a.since, a.remaining = time.UnixMicro(since), microseconds(remaining)
		replies[ord-1] = a
		return nil
	}}
}
