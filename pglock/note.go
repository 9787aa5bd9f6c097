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
	answer chan string // of a mark: what the database said, or "" if nothing came of it; has room for it
}

type noteVerb int

const (
	markNote   noteVerb = iota // a release is to wake this client
	unmarkNote                 // no more
	wakeNote                   // another is to be woken instead of this client
	proofNote                  // a notification to this client itself
)

func (n *note) tell(status string) {
	if n.answer != nil {
		n.answer <- status
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
			n.tell("")
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
	marks, statuses, calls := w.noteCalls(notes)
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
			n.tell("")
			continue
		}
		n.tell(statuses[i])
	}
}

// noteCalls are the statements for notes: marks of waits that have ended go before new ones.
func (w *workLine) noteCalls(notes []*note) (marks []*note, statuses []string, calls []statement) {
	var proofs []statement
	names, waits := map[noteVerb][]string{}, map[noteVerb][]int64{}
	for _, n := range notes {
		names[n.verb], waits[n.verb] = append(names[n.verb], n.name), append(waits[n.verb], n.wait)
		switch n.verb {
		case markNote:
			marks = append(marks, n)
		case proofNote:
			proofs = append(proofs, statement{sql: proveSQL, args: []any{w.client.listener.channel, notification(n.wait, n.name)}})
		}
	}
	c := w.client
	if len(names[unmarkNote]) > 0 {
		calls = append(calls, statement{sql: c.sql.unmark, args: []any{names[unmarkNote], c.listener.id, waits[unmarkNote]}})
	}
	if len(names[wakeNote]) > 0 {
		calls = append(calls, statement{sql: c.sql.wake, args: []any{names[wakeNote]}})
	}
	statuses = make([]string, len(marks))
	if len(marks) > 0 {
		calls = append(calls, statement{c.sql.mark, []any{names[markNote], c.listener.id, waits[markNote]}, func(rows pgx.Rows) error {
			var ord int
			var status string
			if err := rows.Scan(&ord, &status); err != nil {
				return err
			}
			statuses[ord-1] = status
			return nil
		}})
	}
	return marks, statuses, append(calls, proofs...)
}
