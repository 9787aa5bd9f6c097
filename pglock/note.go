package pglock

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// A note is what the work line tells the database about waiting. It is not resent: losing one costs time and no more.
type note struct {
	verb   noteVerb
	name   string
	wait   int64
	fair   bool
	kind   kind
	id     acquisition   // of a mark: what a release may grant; zero: it only wakes. Of an unmark: this goes, and the mark stays
	ttl    time.Duration // of that
	end    *surrender    // of an unmark: what a release has granted, if the mark is there no more
	gone   bool          // it is not
	late   bool          // and a release may have it in its hands
	answer chan reply    // of a mark; without a status nothing came of it. Has room for it
}

type noteVerb int

const (
	markNote   noteVerb = iota // a release is to wake this client
	unmarkNote                 // no more: if one has, another is woken instead
	proofNote                  // a notification to this client itself
)

func (n *note) tell(a reply) {
	if n.answer != nil {
		n.answer <- a
	}
}

// note queues notes for the line. On a line that has ended they come to nothing.
func (w *workLine) note(notes ...*note) {
	if len(notes) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		for _, n := range notes {
			n.tell(reply{err: ErrClosed})
		}
		return
	}
	w.notes = append(w.notes, notes...)
	w.nudge()
}

// sendNotes makes one attempt, in a transaction of its own: it need not be durable.
func (w *workLine) sendNotes(ctx context.Context, notes []*note) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	marks, replies, calls := w.noteCalls(notes)
	err := w.session.ready(ctx)
	if err == nil {
		if err = w.session.run(ctx, calls...); readOnly(err) {
			w.session.drop()
		} else if mispooled(err) && !w.session.pooled {
			w.session.mispooled()
		}
	}
	if err != nil {
		w.client.log.Debug("pglock: a wait was not noted", "error", err)
	}
	for i, n := range marks {
		if err != nil {
			replies[i] = reply{err: explain(w.client.cfg.Schema, err)}
		}
		n.tell(replies[i])
	}
	for _, n := range notes {
		if n.end != nil && (n.gone || err != nil) {
			n.end.heir = n.late || err != nil
			w.surrender(n.end)
		}
	}
}

func into(replies []reply) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var ord int
		var since, remaining int64
		var a reply
		if err := rows.Scan(&ord, &a.status, &a.token, &a.owner, &since, &remaining); err != nil {
			return err
		}
		replies[ord-1] = a.read(since, remaining)
		return nil
	}
}

// noteCalls are the statements for notes: marks of waits that have ended go before new ones, but for those that are new themselves.
func (w *workLine) noteCalls(notes []*note) (marks []*note, replies []reply, calls []statement) {
	c := w.client
	var proofs []statement
	var fairs []bool
	var kinds []int32
	var ids []acquisition
	var ttls []int64
	var names []string
	var waits []int64
	var before, after []*note // unmarks
	for _, n := range notes {
		switch n.verb {
		case markNote:
			names, waits = append(names, n.name), append(waits, n.wait)
			kinds = sparse(kinds, len(marks), int32(n.kind))
			ids, ttls = sparse(ids, len(marks), n.id), sparse(ttls, len(marks), n.ttl.Microseconds())
			marks, fairs = append(marks, n), append(fairs, n.fair)
		case unmarkNote:
			if slices.Contains(waits, n.wait) {
				after = append(after, n)
			} else {
				before = append(before, n)
			}
		case proofNote:
			proofs = append(proofs, statement{sql: proveSQL, args: []any{c.listener.channel, "0 " + n.name}})
		}
	}
	if len(before) > 0 {
		calls = append(calls, w.unmarkCall(before))
	}
	replies = make([]reply, len(marks))
	if len(marks) > 0 {
		calls = append(calls, statement{c.sql.mark, []any{names, c.listener.id, waits, fairs, kinds, ids, c.cfg.Owner, ttls}, into(replies)})
	}
	if len(after) > 0 {
		calls = append(calls, w.unmarkCall(after))
	}
	return marks, replies, append(calls, proofs...)
}

func (w *workLine) unmarkCall(notes []*note) statement {
	var ids []acquisition
	names, waits := make([]string, len(notes)), make([]int64, len(notes))
	for i, n := range notes {
		names[i], waits[i] = n.name, n.wait
		ids = sparse(ids, i, n.id)
	}
	return statement{w.client.sql.unmark, []any{names, w.client.listener.id, waits, ids}, func(rows pgx.Rows) error {
		var ord int
		var pending bool
		if err := rows.Scan(&ord, &pending); err != nil {
			return err
		}
		notes[ord-1].gone, notes[ord-1].late = true, pending
		return nil
	}}
}
