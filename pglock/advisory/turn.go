package advisory

import "context"

// A turn is the right to hold a key in this client. PostgreSQL would not keep two sessions of one process apart if they take a
// lock together, and would count a lock that one session takes twice; and goroutines that wait here need no connection.
type turn struct {
	token chan struct{} // full: taken. Who waits to fill it is served in order
	users int           // who has it or waits for it; guarded by Client.mu
}

// takeTurn takes the turn of a key, or says that it is taken, or waits for it.
func (c *Client) takeTurn(ctx context.Context, key Key, wait bool) (leave func(), err error) {
	c.mu.Lock()
	t := c.turns[key.id()]
	if t == nil {
		t = &turn{token: make(chan struct{}, 1)}
		c.turns[key.id()] = t
	}
	t.users++
	c.mu.Unlock()
	forget := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(c.turns, key.id())
		}
	}
	own := &HeldError{Key: key, Own: true}
	select {
	case t.token <- struct{}{}:
		return func() { <-t.token; forget() }, nil
	default:
	}
	if !wait {
		forget()
		return nil, own
	}
	select {
	case t.token <- struct{}{}:
		return func() { <-t.token; forget() }, nil
	case <-ctx.Done():
		forget()
		return nil, waited(ctx, key, own)
	}
}
