package pglock

import (
	"time"

	"github.com/fencedlock/fencedlock/fence"
)

// Listening says whether a notification of the client to itself has arrived.
func Listening(c *Client) bool {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	return c.listener.heard
}

// Queued is how many calls of Acquire are under way for a name.
func Queued(c *Client, name string) int {
	c.queues.mu.Lock()
	defer c.queues.mu.Unlock()
	if q := c.queues.byName[name]; q != nil {
		return len(q.waiters)
	}
	return 0
}

// Refused says whether the first of a queue was told why it has to wait.
func Refused(c *Client, name string) bool {
	c.queues.mu.Lock()
	defer c.queues.mu.Unlock()
	return c.queues.byName[name].reason != nil
}

// ProveEvery makes the proofs that a client hears more frequent. Before it is used.
func ProveEvery(c *Client, d time.Duration) { c.listener.proveEvery = d }

// MarkedWhenDeafAfter makes a waiter that hears nothing less patient. Before it is used.
func MarkedWhenDeafAfter(c *Client, d time.Duration) { c.patience = d }

// OnlyWhenWoken lets a client that hears notifications not ask by itself. Before it is used.
func OnlyWhenWoken(c *Client) { c.seldom = time.Hour }

// StepsBack says whether a client is to let another process go first, because it was faster for long enough.
func StepsBack(c *Client, name string) bool {
	c.queues.mu.Lock()
	defer c.queues.mu.Unlock()
	q := c.queues.byName[name]
	return q != nil && q.isOverdue()
}

// Queues is how many names the client keeps anything of.
func Queues(c *Client) int {
	c.queues.mu.Lock()
	defer c.queues.mu.Unlock()
	return len(c.queues.byName)
}

// Notes is how many notes a client has not sent yet.
func Notes(c *Client) int {
	c.work.mu.Lock()
	defer c.work.mu.Unlock()
	return len(c.work.notes)
}

// Asks is how many requests a client has not sent yet.
func Asks(c *Client) int {
	c.work.mu.Lock()
	defer c.work.mu.Unlock()
	return len(c.work.requests)
}

// IsYielding says whether a client lets another process go first.
func IsYielding(c *Client, name string) bool {
	c.queues.mu.Lock()
	defer c.queues.mu.Unlock()
	q := c.queues.byName[name]
	return q != nil && !q.yield.isZero()
}

// BequestsLast is how long a client takes a bequest to last; 0: it fetches each. Before it is used.
func BequestsLast(c *Client, d time.Duration) { c.bequest = d }

// Forward puts the wall clock of a client forward.
func Forward(c *Client, d time.Duration) { c.clock.skew.Add(int64(d)) }

// AsksEvery is how often a client that hears asks by itself, roughly. Before it is used.
func AsksEvery(c *Client, d time.Duration) { c.seldom = d }

// Behind is the token of the lease that the first of a queue was told is in its way; 0: it is not known, or it asks just now.
func Behind(c *Client, name string) (token fence.Token) {
	c.queues.first(name, func(_ *queue, w *waiter) {
		if w.request == nil {
			token = w.behind.token
		}
	})
	return token
}

// IsBehind says whether that is known.
func IsBehind(c *Client, name string) bool { return Behind(c, name) != 0 }

// IsAsking says whether the first of a queue has a question on its way.
func IsAsking(c *Client, name string) (yes bool) {
	c.queues.first(name, func(_ *queue, w *waiter) { yes = w.request != nil || w.behind == behind{} })
	return yes
}

// IsWoken says whether a release has woken the first of a queue.
func IsWoken(c *Client, name string) (yes bool) {
	c.queues.first(name, func(q *queue, _ *waiter) { yes = q.woken != 0 })
	return yes
}

func (qs *queues) first(name string, look func(*queue, *waiter)) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if q := qs.byName[name]; q != nil && len(q.waiters) > 0 {
		look(q, q.waiters[0])
	}
}
