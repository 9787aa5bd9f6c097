package advisory

import "context"

// Settings answers what the server has for some settings in a session of the client's.
func Settings(ctx context.Context, c *Client, names ...string) (map[string]string, error) {
	s, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer s.goodbye()
	values := map[string]string{}
	for _, name := range names {
		var value string
		if err := s.queryRow(ctx, `SELECT current_setting($1)`, name).Scan(&value); err != nil {
			return nil, err
		}
		values[name] = value
	}
	return values, nil
}

// Strip takes a lock away from the session that holds it, as a pooler would that hands its backend to another.
func Strip(ctx context.Context, l *Lock) error { return l.session.unlock(ctx, l.request) }

// Idle is a lock whose session nobody looks after: see Strip.
func Idle(ctx context.Context, c *Client, key Key) (*Lock, error) {
	r := request{key: key}
	s, err := c.obtain(ctx, r, false)
	if err != nil {
		return nil, err
	}
	l := &Lock{client: c, request: r, session: s, leave: func() {}, done: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	return l, nil
}

// Keep is the goroutine that Idle left out.
func Keep(l *Lock) { l.client.keepers.Go(l.keep) }
