package pglock

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// An answer is what the database said of one renewal.
type answer string

// with makes one answer of those for two names of a lease: one lost is all lost.
func (a answer) with(b answer) answer {
	if a == "" || a == "renewed" || a == "locked" && b != "renewed" {
		return b
	}
	return a
}

func (k *keeper) askDatabase(ctx context.Context, due []*Lease) (sent instant, answers []answer, err error) {
	if err := k.session.ready(ctx); err != nil {
		return sent, nil, &connectError{err}
	}
	var names []string
	var ids []acquisition
	var tokens []int64
	var slots []int32
	var of []int // the lease of each row
	for i, l := range due {
		for _, p := range l.places {
			slots = sparse(slots, len(names), int32(p.slot))
			names, ids, tokens, of = append(names, p.name), append(ids, l.id), append(tokens, int64(l.token)), append(of, i)
		}
	}
	answers = make([]answer, len(due))
	sent = k.client.clock.now() // before sending: a slow reply shortens trust, it never stretches it
	err = k.session.run(ctx, statement{k.client.sql.renew, []any{names, ids, tokens, slots}, func(rows pgx.Rows) error {
		var ord int
		var a answer
		if err := rows.Scan(&ord, &a); err != nil {
			return err
		}
		if ord == 0 { // of all
			for i := range answers {
				answers[i] = a
			}
			return nil
		}
		l := of[ord-1]
		answers[l] = answers[l].with(a)
		return nil
	}})
	if err != nil && (k.session.broken() || readOnly(err)) {
		k.session.drop()
	}
	if mispooled(err) && !k.session.pooled {
		k.session.mispooled()
	}
	return sent, answers, err
}

// renewed takes the answer to a renewal. A lapse is final: an answer that comes after trust has ended changes nothing.
func (l *Lease) renewed(sent instant, a answer) {
	l.look()
	switch a {
	case "renewed":
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.over != nil {
			return
		}
		l.trust = l.within(trustAfterRenewal(sent, l.config.ttl))
		l.plan(sent)
		l.renewing, l.failed = false, 0
		l.tell(nil)
	case "locked":
		l.again(lockedRetry)
	case "taken":
		l.end(l.lost(Taken))
	case "revoked":
		l.end(l.lost(Revoked))
	case "gone":
		l.end(l.lost(Deleted))
	default:
		l.end(l.expired())
	}
}

// unanswered makes the lease due again after a pause that doubles, and tells those who asked for the renewal.
func (l *Lease) unanswered(err error) {
	l.mu.Lock()
	l.failed, l.failure = l.failed+1, err
	pause := backoff(l.failed + 3)
	l.tell(err)
	l.mu.Unlock()
	l.again(pause)
}

// again makes the lease due after a pause. Those who asked for the renewal go on waiting.
func (l *Lease) again(pause time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewAt = l.client.clock.now().add(pause)
	l.renewing = false
}

// tell answers those who asked for the renewal. The caller has locked the lease.
func (l *Lease) tell(err error) {
	for _, w := range l.waiters {
		w <- err
	}
	l.waiters = nil
}
