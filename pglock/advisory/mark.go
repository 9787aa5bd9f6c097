package advisory

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// Who waits in Acquire of a Client asks again and again, so PostgreSQL does not know that it waits. For List its session holds
// a mark meanwhile: a lock, shared by all who wait for the same, that stands for the one it wants. A mark is for people: where
// two keys share one, a waiter is listed for both.

// markSpace is the first number of every mark.
const markSpace int32 = -1255936055

// mark is the lock that a session holds while it waits for r.
func (r request) mark() request {
	var b [9]byte
	b[0] = byte(r.key.space)
	binary.BigEndian.PutUint64(b[1:], uint64(r.key.bits)) //nolint:gosec // its bits
	sum := sha256.Sum256(b[:])
	n := int32(binary.BigEndian.Uint32(sum[:])) &^ 1 //nolint:gosec // any 31 bits will do
	if r.shared {
		n |= 1
	}
	return request{key: Int32s(markSpace, n), shared: true}
}

// putMark marks the session as one that waits. If that fails nobody sees it wait, and that is all.
func (s *session) putMark(ctx context.Context, r request) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	mark := r.mark()
	if err := s.queryRow(ctx, mark.try("pg_try_advisory_lock"), mark.args()...).Scan(&s.marked); err != nil {
		s.marked = false
	}
}

// dropMark takes the mark away, once the wait is over.
func (s *session) dropMark(ctx context.Context, r request) error {
	if !s.marked {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	s.marked = false
	return s.unlock(ctx, r.mark())
}

// resolveMarks turns the marks among the entries into those who wait, each behind those who hold what it wants. Marks for what
// nobody holds at the moment are left out.
func resolveMarks(all []Entry) []Entry {
	marks := map[id][]Entry{}
	held := slices.DeleteFunc(all, func(e Entry) bool {
		if a, _, two := e.Key.Int32s(); !two || a != markSpace {
			return false
		}
		marks[e.Key.id()] = append(marks[e.Key.id()], e)
		return true
	})
	var list []Entry
	for len(held) > 0 {
		key := held[0].Key
		n := slices.IndexFunc(held, func(e Entry) bool { return !e.Key.Same(key) })
		if n < 0 {
			n = len(held)
		}
		list = append(list, held[:n]...)
		for _, shared := range []bool{false, true} {
			for _, e := range marks[request{key: key, shared: shared}.mark().key.id()] {
				if wanting, blocked := waiter(e, key, shared, held[:n]); blocked {
					list = append(list, wanting)
				}
			}
		}
		held = held[n:]
	}
	return list
}

// waiter is the entry of a mark, and whether somebody is in its way.
func waiter(mark Entry, key Key, shared bool, holders []Entry) (e Entry, blocked bool) {
	e = mark
	e.Key, e.Shared, e.Waits = key, shared, true
	for _, h := range holders {
		if h.PID == e.PID {
			return e, false // it has just been granted it
		}
		if !h.Waits && !(shared && h.Shared) {
			e.BlockedBy = append(e.BlockedBy, h.PID)
		}
	}
	return e, len(e.BlockedBy) > 0
}
