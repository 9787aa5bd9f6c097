package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// A contender is a system in one question. Two with one system are a control pair.
type contender struct {
	Label  string
	System string
	URL    string
	TTL    time.Duration
}

// A caller is somebody who wants locks: a goroutine of this process (local), or a process of its own (process).
type caller interface {
	// Open makes the client, so that nothing that is measured pays for it.
	Open(context.Context, contender) error
	// Acquire waits for a lock and answers when it was granted.
	Acquire(ctx context.Context, c contender, name string) (granted instant, err error)
	// Release frees it and answers when that began.
	Release(ctx context.Context, c contender, name string) (began instant, err error)
	// Contend takes one lock again and again.
	Contend(ctx context.Context, c contender, job contest) (turns, error)
}

// A contest is what every caller of a contended lock does until it is over. Grants before From are for warming up.
type contest struct {
	Name        string
	From, Until instant
	Section     time.Duration // how long each holds the lock
}

// turns are what one caller got.
type turns struct {
	Counted, All int             // grants between From and Until, and all of them
	Waits        []time.Duration // for those that are counted
}

// hands are the clients of one process.
type hands struct {
	mu      sync.Mutex
	clients map[string]Client
}

func (h *hands) client(ctx context.Context, c contender) (Client, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := fmt.Sprint(c.System, c.TTL)
	if open := h.clients[key]; open != nil {
		return open, nil
	}
	s := system(c.System)
	if s == nil {
		return nil, fmt.Errorf("no system %q", c.System)
	}
	client, err := s.Open(ctx, c.URL, c.TTL)
	if err != nil {
		return nil, err
	}
	if h.clients == nil {
		h.clients = map[string]Client{}
	}
	h.clients[key] = client
	return client, nil
}

func (h *hands) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.clients {
		c.Close() //nolint:errcheck // what was measured has been answered
	}
	h.clients = nil
}

// A local is a caller in this process.
type local struct {
	*hands
	mu   sync.Mutex
	held map[string]func(context.Context) error
}

func (l *local) Open(ctx context.Context, c contender) error {
	_, err := l.client(ctx, c)
	return err
}

func (l *local) Acquire(ctx context.Context, c contender, name string) (instant, error) {
	client, err := l.client(ctx, c)
	if err != nil {
		return 0, err
	}
	release, err := client.Acquire(ctx, name)
	granted := now()
	if err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held == nil {
		l.held = map[string]func(context.Context) error{}
	}
	l.held[name] = release
	return granted, nil
}

func (l *local) Release(ctx context.Context, _ contender, name string) (instant, error) {
	l.mu.Lock()
	release := l.held[name]
	delete(l.held, name)
	l.mu.Unlock()
	if release == nil {
		return 0, fmt.Errorf("lock %q is not held", name)
	}
	began := now()
	return began, release(ctx)
}

func (l *local) Contend(ctx context.Context, c contender, job contest) (t turns, err error) {
	client, err := l.client(ctx, c)
	if err != nil {
		return t, err
	}
	for asked := now(); asked < job.Until; asked = now() {
		release, err := client.Acquire(ctx, job.Name)
		if err != nil {
			return t, err
		}
		granted := now()
		t.All++
		if granted.within(job.From, job.Until) {
			t.Counted++
			t.Waits = append(t.Waits, granted.since(asked))
		}
		if job.Section > 0 {
			time.Sleep(job.Section)
		}
		if err := release(ctx); err != nil {
			return t, err
		}
	}
	return t, nil
}
