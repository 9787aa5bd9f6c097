package pglock

import (
	"crypto/rand"
	"sync/atomic"
	"time"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/jackc/pgx/v5/pgtype"
)

// An acquisition is the id of one attempt: never reused, granted at most once, and the credential of whoever it was granted to.
type acquisition = pgtype.UUID

func newAcquisition() acquisition {
	id := acquisition{Valid: true}
	rand.Read(id.Bytes[:]) //nolint:errcheck // it never fails: crypto/rand ends the program instead
	id.Bytes[6] = id.Bytes[6]&0x0f | 0x40
	id.Bytes[8] = id.Bytes[8]&0x3f | 0x80
	return id
}

// A request asks for a lock. It belongs to the work line from the moment it is queued until it is answered.
type request struct {
	leaseConfig
	id        acquisition
	firstSent instant // before the first sending; zero: never sent
	reply     chan reply
	unsure    bool         // an earlier sending may have committed
	afterWake bool         // a release had woken this client for it
	wait      int64        // the number of its mark, to be made where the lock is held and taken away with a grant; 0: none
	state     atomic.Int32 // waiting, then answered or abandoned
}

const (
	waiting int32 = iota
	answered
	abandoned
)

// A reply is what the database said of a request, or err.
type reply struct {
	status    string
	token     fence.Token
	owner     string
	since     time.Time
	remaining time.Duration
	over      bool    // nobody holds it: it is only kept from others
	sent      instant // before the sending that was answered
	places    []place // of a grant
	name      string  // which of several is in the way
	slot      int     // of a grant; what the name is, where it is of another kind
	awaited   bool    // another process waits for what was granted beside a release
	disowned  bool    // what may be granted yet to this acquisition is given back
	err       error
}

// read takes in what the database says in its own way: an instant and a duration in microseconds, and of a mark whether anybody
// holds the lock.
func (a reply) read(since, remaining int64) reply {
	a.since, a.remaining = time.UnixMicro(since), microseconds(remaining)
	a.over = a.status == "kept" || a.status == "marked_kept"
	if a.status == "marked_kept" {
		a.status = "marked"
	}
	return a
}

func newRequest(lc leaseConfig) *request {
	return &request{leaseConfig: lc, id: newAcquisition(), reply: make(chan reply, 1)}
}

// weight is what a request adds to a batch. A slot is looked for among all the others.
func (r *request) weight() int {
	if r.kind != alone {
		return 10 * len(r.names)
	}
	return len(r.names)
}

// answer gives the reply to whoever waits; false says that nobody does any more.
func (r *request) answer(a reply) bool {
	if !r.state.CompareAndSwap(waiting, answered) {
		return false
	}
	r.reply <- a
	return true
}

// abandon says that nobody waits any more; false says that the answer is already there.
func (r *request) abandon() bool { return r.state.CompareAndSwap(waiting, abandoned) }

func (r *request) isAbandoned() bool { return r.state.Load() == abandoned }

// trust is the end of what a holder may trust if the request is granted with what remains.
func (r *request) trust(sent instant, remaining time.Duration) instant {
	return trustAfterGrant(r.firstSent, sent, r.ttl, remaining)
}

// A place is a name with the slot of a holder: 0, where one may hold it at a time.
type place struct {
	name string
	slot int
}

// unknownSlot stands for the slot of a grant whose answer is not known: the database finds it by its acquisition.
const unknownSlot = -1

// placesIn are where a request was granted, or may have been if there are no slots.
func (c leaseConfig) placesIn(slots []int) []place {
	all := make([]place, len(c.names))
	for i, name := range c.names {
		all[i].name = name
		switch {
		case slots != nil:
			all[i].slot = slots[i]
		case c.kind != alone:
			all[i].slot = unknownSlot
		}
	}
	return all
}

// A surrender ends a grant, or what may have been granted: its acquisition is never held again, whatever becomes of it.
type surrender struct {
	places []place
	id     acquisition
	giveUp instant      // by then the lease is over by itself
	done   chan<- error // nil, or gets the outcome; has room for it
	again  instant      // not before; zero: at once
	tries  int
	unsure bool // an earlier sending may have committed
	unheld bool // nobody was told of the grant
	ghost  bool // it may not be granted yet: a statement that was given up may still be on its way
	heir   bool // nor this: a release by another process may be about to grant it
}

func (s *surrender) finish(err error) {
	if s.done != nil {
		s.done <- err
		s.done = nil
	}
}
