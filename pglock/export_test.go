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
