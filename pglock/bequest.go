package pglock

import (
	"strconv"
	"strings"
	"time"

	"github.com/fencedlock/fencedlock/fence"
)

// bequestTime is how long what a release has granted to a waiter lasts until the first renewal, or until the waiter fetches it.
const bequestTime = 3 * time.Second

// A bequest is what a release by another process has granted to a waiter. The notification says so, and it is sent once the grant is on
// the disk. If it comes in good time the waiter has the lock, without asking for it.
type bequest struct {
	id    acquisition
	token fence.Token
	since time.Time // by the database's clock
}

// inherit lets a waiter have what a release has granted to it. It does nothing where the waiter is to ask: because half of the time may be
// over, or because it asks already. The caller has locked the queues.
func (w *waiter) inherit(b bequest) {
	c := w.queue.client
	now := c.clock.now() // before left: a pause between them shortens trust, it never stretches it
	lasts := min(w.config.ttl, c.bequest)
	left := c.clock.left(w.made.add(lasts)) // at least. When the grant began is not known here, but it was after its acquisition was made
	if b.id != w.id || left < lasts/2 || w.request != nil || w.queue.holder != nil {
		return
	}
	c.sawToken(b.token)
	r := newRequest(w.config)
	r.id, r.firstSent, r.afterWake, r.wait = w.id, w.made, true, w.queue.wait
	r.answer(reply{status: "granted", token: b.token, since: b.since, remaining: left, sent: now, places: r.placesIn(nil)})
	w.request = r
}

// readNotification reads what wake has written: the number of the wait, 0 for a proof; what was granted, if anything was; and the name.
func readNotification(payload string) (wait int64, b bequest, name string, ok bool) {
	head, name, ok := strings.Cut(payload, " ")
	said := strings.Split(head, ",")
	wait, bad := strconv.ParseInt(said[0], 10, 64)
	if len(said) == 4 && bad == nil {
		var token, since int64
		if bad = b.id.Scan(said[1]); bad == nil {
			token, bad = strconv.ParseInt(said[2], 10, 64)
		}
		if bad == nil {
			since, bad = strconv.ParseInt(said[3], 10, 64)
		}
		b.token, b.since = fence.Token(token), time.UnixMicro(since)
	}
	return wait, b, name, ok && bad == nil
}
