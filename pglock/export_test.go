package pglock

import "time"

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

// IsPlaced says whether the first of a queue was told to wait, and asks nothing just now.
func IsPlaced(c *Client, name string) (yes bool) {
	c.queues.first(name, func(q *queue, w *waiter) { yes = w.request == nil && q.placed })
	return yes
}

// IsAsking says whether the first of a queue has a question on its way; of a fair one whether it has looked at its place again.
func IsAsking(c *Client, name string) (yes bool) {
	c.queues.first(name, func(_ *queue, w *waiter) { yes = w.request != nil || w.made.isZero() })
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

// Inherited is by how much a waiter trusts a bequest beyond what it lasts at least, counted from when its acquisition was made.
func Inherited(c *Client) (beyond time.Duration) {
	w := &waiter{config: leaseConfig{names: []string{"a"}, ttl: time.Minute}, queue: &queue{client: c}}
	w.promise(newAcquisition())
	w.inherit(bequest{id: w.id, token: 1})
	a := <-w.request.reply
	return a.sent.mono + a.remaining - w.made.mono - c.bequest
}
