package pglock

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/fencedlock/fencedlock/fence"
)

// maxSends bounds how often one batch is sent when its connection breaks or the server asks to try again.
const maxSends = 3

// settle sends a batch until its outcome is known, and answers everybody in it. When the connection broke after sending, the
// outcome is unknown: the same acquisitions are sent again, each finds its own grant or is granted now. What stays unknown is
// answered with the error, and ended later.
func (w *workLine) settle(ctx context.Context, b batch) {
	for try := 1; ; try++ {
		b = w.withoutDead(b)
		if b.size() == 0 {
			return
		}
		err := w.send(ctx, &b)
		if err == nil {
			return
		}
		sent := !errors.As(err, new(*connectError))
		if sent && w.session.broken() {
			b.unsure()
		}
		again := try < maxSends && sent && ctx.Err() == nil
		switch {
		case errors.Is(err, errUnconfirmed) && sent:
			w.disown(b)
			return
		case poisoned(err) && sent && b.size() > 1:
			for _, r := range b.requests {
				w.settle(ctx, batch{requests: []*request{r}})
			}
			for _, s := range b.ends {
				w.settle(ctx, batch{ends: []*surrender{s}})
			}
			return
		case mispooled(err) && again && !w.session.pooled:
			w.session.mispooled()
			continue
		case readOnly(err):
			w.session.drop() // the next connection may find the primary
		}
		err = explain(w.client.cfg.Schema, err)
		if !again || hopeless(err) || errors.Is(err, ErrReadOnly) {
			w.fail(b, err)
			return
		}
		w.client.log.Debug("pglock: sending again", "error", err)
	}
}

// unsure notes that the sending that broke may have committed.
func (b batch) unsure() {
	for _, r := range b.requests {
		r.unsure = true
	}
	for _, s := range b.ends {
		s.unsure = true
	}
}

// withoutDead drops the requests that nobody waits for, and those whose lease would be over before it begins. What they may
// have been granted by an earlier sending is ended in the same batch.
func (w *workLine) withoutDead(b batch) batch {
	alive := b.requests[:0:0]
	for _, r := range b.requests {
		late := !r.firstSent.isZero() && w.client.clock.left(r.trust(r.firstSent, r.ttl)) <= 0
		if !late && !r.isAbandoned() {
			alive = append(alive, r)
			continue
		}
		r.answer(reply{status: "spent"})
		if r.unsure {
			b.ends = append(b.ends, w.endOf(r))
		}
	}
	b.requests = alive
	return b
}

// deliver hands a committed reply over. A grant that nobody waits for any more is given back; so is one that an earlier
// sending may yet bring, behind this reply.
func (w *workLine) deliver(r *request, a reply) {
	granted := a.status == "granted"
	if granted {
		w.client.sawToken(a.token)
	}
	a.disowned = !granted && r.unsure && w.session.ghosts
	told := r.answer(a)
	if granted && !told || a.disowned {
		w.surrender(w.endOf(r))
	}
}

func (w *workLine) conclude(s *surrender, status string) {
	switch {
	case status == "released":
		s.finish(nil)
	case status == "locked": // a renewal in flight, or somebody's hand
		s.unsure = s.unsure || len(s.places) > 1 // the others are released
		w.later(s, errRowLocked)
	case (s.heir || s.ghost && w.session.ghosts) && !w.isDraining(): // not granted yet, perhaps
		w.later(s, nil)
	case s.unsure: // released by that sending, then
		s.finish(nil)
	default:
		s.finish(errGone)
	}
}

// errRowLocked: somebody else's transaction has its hand on the row.
var errRowLocked = errors.New("its row is locked by another transaction")

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

// fail answers everybody with the error. What may have been granted all the same is ended later; a release that has an error
// which waiting does not cure is told so at once, and still tried.
func (w *workLine) fail(b batch, err error) {
	level := slog.LevelWarn
	if w.failing {
		level = slog.LevelDebug // said before
	}
	w.failing = true
	w.client.log.Log(context.Background(), level, "pglock: cannot acquire or release", "error", err)
	for _, r := range b.requests {
		r.answer(reply{err: err, disowned: r.unsure})
		if r.unsure {
			w.surrender(w.endOf(r))
		}
	}
	for _, s := range b.ends {
		if hopeless(err) {
			s.finish(err)
		}
		w.later(s, err)
	}
}

// endOf ends what a request was granted, or may have been, though nobody was told of it. What may yet come is looked for a
// minute longer than its TTL, but not for as long as a HoldAtLeast.
func (w *workLine) endOf(r *request) *surrender {
	giveUp := w.client.clock.now().add(max(r.ttl, min(r.holdAtLeast, r.ttl+time.Minute)))
	return &surrender{places: r.placesIn(nil), id: r.id, giveUp: giveUp, unheld: true, ghost: r.unsure}
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
