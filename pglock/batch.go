package pglock

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
)

// A batch is one round trip and one transaction: ends of grants first, so that what they free can be granted.
type batch struct {
	requests []*request
	ends     []*surrender
	notes    []*note // not part of it: they follow in a transaction of their own
}

func (b batch) size() int { return len(b.requests) + len(b.ends) }

// rows is how many answers the requests get: one for each name.
func (b batch) rows() (n int) {
	for _, r := range b.requests {
		n += len(r.names)
	}
	return n
}

func (b batch) endRows() (n int) {
	for _, s := range b.ends {
		n += len(s.places)
	}
	return n
}

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
	replies, outcomes := make([]reply, b.rows()), make([]outcome, b.endRows())
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
	for _, r := range b.requests {
		n := len(r.names)
		a := r.combine(replies[:n])
		replies = replies[n:]
		a.sent = sent
		w.deliver(r, a)
	}
	for _, s := range b.ends {
		n := len(s.places)
		for i, o := range outcomes[:n] {
			if o.awaited {
				w.client.queues.passOn(s.places[i].name)
			}
		}
		w.conclude(s, ended(outcomes[:n]))
		outcomes = outcomes[n:]
	}
	return nil
}

func (w *workLine) acquireCall(b batch, replies []reply) statement {
	return statement{w.client.sql.acquire, w.requestArgs(b), func(rows pgx.Rows) error {
		var ord int
		var since, remaining int64
		var a reply
		if err := rows.Scan(&ord, &a.status, &a.token, &a.owner, &since, &remaining, &a.slot); err != nil {
			return err
		}
		replies[ord-1] = a.read(since, remaining)
		return nil
	}}
}

// combine makes one answer of those for the names of a request: all were granted, or one says why none was.
func (r *request) combine(answers []reply) reply {
	for i, a := range answers {
		if a.status != "granted" && a.status != "spared" {
			a.name = r.names[i]
			return a
		}
	}
	a := answers[0]
	slots := make([]int, len(answers))
	for i, one := range answers {
		slots[i] = one.slot
		a.remaining, a.awaited = min(a.remaining, one.remaining), a.awaited || one.awaited
	}
	a.places = r.placesIn(slots)
	return a
}

// An outcome is what the database said of the end of a grant.
type outcome struct {
	status  string
	awaited bool // another process waits for it
}

// ended makes one outcome of those for the places of a grant.
func ended(outcomes []outcome) string {
	for _, worst := range []string{"locked", "gone"} {
		if slices.ContainsFunc(outcomes, func(o outcome) bool { return o.status == worst }) {
			return worst
		}
	}
	return "released"
}

// requestArgs has a row for each name. What is rarely used is not sent, and nobody need look at it.
func (w *workLine) requestArgs(b batch) []any {
	n := len(b.requests)
	names, ids, ttls := make([]string, 0, n), make([]acquisition, 0, n), make([]int64, 0, n)
	var holds, delays, waits []int64
	var metas []*string
	var kinds, lots []int32
	var heirs []bool
	for i, r := range b.requests {
		for _, name := range r.names {
			row := len(names)
			names, ids, ttls = append(names, name), append(ids, r.id), append(ttls, r.ttl.Microseconds())
			holds = sparse(holds, row, r.holdAtLeast.Microseconds())
			delays = sparse(delays, row, r.lockDelay.Microseconds())
			metas = sparse(metas, row, r.metadata)
			kinds = sparse(kinds, row, int32(r.kind))
			waits = sparse(waits, row, r.wait)
			heirs = sparse(heirs, row, r.wait != 0 && r.isPlain())
		}
		for len(lots) < len(names) {
			lots = append(lots, int32(i))
		}
	}
	if len(names) == n { // no lots of several
		lots = nil
	}
	return []any{names, ids, w.client.cfg.Owner, ttls, holds, metas, w.client.seen.Load(), delays, kinds, lots, w.client.listener.id, waits, heirs}
}

// sparse adds v to a column, unless it is zero: rows that it does not reach count as zero in the database.
func sparse[T comparable](column []T, row int, v T) []T {
	var zero T
	if v == zero {
		return column
	}
	return append(append(column, make([]T, row-len(column))...), v)
}

func (w *workLine) releaseCall(b batch, outcomes []outcome) statement {
	names, ids, unheld, slots := endArgs(b)
	// Losing a release in a crash costs others the rest of a TTL, and a flush for each costs everybody: it need not be durable
	// when it travels alone.
	const deferred = true
	return statement{w.client.sql.release, []any{names, ids, deferred, unheld, slots}, func(rows pgx.Rows) error {
		var ord int
		var status string
		if err := rows.Scan(&ord, &status); err != nil {
			return err
		}
		if status == "awaited" { // the second answer
			outcomes[ord-1].awaited = true
		} else {
			outcomes[ord-1].status = status
		}
		return nil
	}}
}

func endArgs(b batch) (names []string, ids []acquisition, unheld []bool, slots []int32) {
	for _, s := range b.ends {
		for _, p := range s.places {
			slots = sparse(slots, len(names), int32(p.slot))
			names, ids, unheld = append(names, p.name), append(ids, s.id), append(unheld, s.unheld)
		}
	}
	return names, ids, unheld, slots
}

func (w *workLine) exchangeCall(b batch, outcomes []outcome, replies []reply) statement {
	names, ids, unheld, slots := endArgs(b)
	args := append([]any{names, ids, unheld, slots}, w.requestArgs(b)...)
	return statement{w.client.sql.exchange, args, func(rows pgx.Rows) error {
		var ord int
		var since, remaining int64
		var a reply
		var ended bool
		if err := rows.Scan(&ord, &a.status, &a.token, &a.owner, &since, &remaining, &a.slot, &ended, &a.awaited); err != nil {
			return err
		}
		if ended {
			outcomes[ord-1].status = a.status
			return nil
		}
		replies[ord-1] = a.read(since, remaining)
		return nil
	}}
}
