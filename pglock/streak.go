package pglock

import "time"

// A process that holds a lock and asks for it again is faster than one that has to be woken. So it counts how often in a row it was
// granted what another waits for, and stands back in time.
const (
	// maxHandOvers and maxHandOverTime bound how long a process passes a lock from one of its own to the next, or takes it again, while
	// another process waits for it.
	maxHandOvers    = 16
	maxHandOverTime = 50 * time.Millisecond

	// yieldFor is how long it then stands back, for the other to ask. On a busy machine that one takes its time.
	yieldFor = 50 * time.Millisecond

	// streakOver is after how long without a further grant a streak is forgotten.
	streakOver = time.Second
)

// passOn notes that a release has woken another process. Who asks again and again may be faster each time, so after a while it is
// to stand back.
func (qs *queues) passOn(name string) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.of(name)
	q.lengthen()
	qs.forgetEmpty(q)
	for range min(2, len(qs.kept)) { // at most one has come, so that they become fewer
		old := qs.kept[0]
		qs.kept = qs.kept[1:]
		if qs.client.clock.left(old.streakLast) >= -streakOver {
			qs.kept = append(qs.kept, old)
			continue
		}
		old.kept, old.streak = false, 0
		qs.forgetEmpty(old)
	}
}

// lengthen adds to the streak. The caller has locked the queues.
func (q *queue) lengthen() {
	now := q.client.clock.now()
	if q.streak == 0 || q.client.clock.left(q.streakLast) < -streakOver {
		q.streak, q.streakBegan = 0, now
	}
	q.streak++
	q.streakLast = now
}

// isOverdue says whether another process has waited for long enough. The caller has locked the queues.
func (q *queue) isOverdue() bool {
	c := q.client.clock
	return q.streak > 0 && c.left(q.streakLast) >= -streakOver && (q.streak >= maxHandOvers || c.left(q.streakBegan) <= -maxHandOverTime)
}

// standBack lets the other ask first, where it has waited for long enough, and answers for how much longer. The caller has locked the queues.
func (q *queue) standBack() time.Duration {
	c := q.client.clock
	if q.isOverdue() {
		q.streak = 0
		q.yield = c.now().add(jitter(yieldFor))
	}
	if q.yield.isZero() || q.woken != 0 {
		return 0
	}
	return max(c.left(q.yield), 0)
}
