package pglock

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// A note is what the work line tells the database about waiting. It is not resent: losing one costs time and no more.
type note struct {
	verb   noteVerb
	name   string
	wait   int64
	fair   bool
	kind   kind
	answer chan reply // of a mark; without a status nothing came of it. Has room for it
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

// noteCalls are the statements for notes: marks of waits that have ended go before new ones.
func (w *workLine) noteCalls(notes []*note) (marks []*note, replies []reply, calls []statement) {
	c := w.client
	var proofs []statement
	var fairs []bool
	var kinds []int32
	names, waits := map[noteVerb][]string{}, map[noteVerb][]int64{}
	for _, n := range notes {
		names[n.verb], waits[n.verb] = append(names[n.verb], n.name), append(waits[n.verb], n.wait)
		switch n.verb {
		case markNote:
			kinds = sparse(kinds, len(marks), int32(n.kind))
			marks, fairs = append(marks, n), append(fairs, n.fair)
		case proofNote:
			proofs = append(proofs, statement{sql: proveSQL, args: []any{c.listener.channel, notification(n.wait, n.name)}})
		}
	}
	if len(names[unmarkNote]) > 0 {
		calls = append(calls, statement{sql: c.sql.unmark, args: []any{names[unmarkNote], c.listener.id, waits[unmarkNote]}})
	}
	replies = make([]reply, len(marks))
	if len(marks) > 0 {
		calls = append(calls, statement{c.sql.mark, []any{names[markNote], c.listener.id, waits[markNote], fairs, kinds}, into(replies)})
	}
	return marks, replies, append(calls, proofs...)
}
