package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// A bank knows the status of the one invoice, and delivers events until they are taken.
type bank struct {
	mu     sync.Mutex
	now    string
	asked  chan struct{} // gets something when somebody asks while answers are held back
	answer chan struct{} // holds the next answer back until it is closed; nil: it does not
}

// set changes the status. If hold, the next answer, of what holds now, arrives only when it is let go.
func (b *bank) set(status string, hold bool) (asked <-chan struct{}, letGo func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = status
	if !hold {
		return nil, nil
	}
	answer := make(chan struct{})
	b.asked, b.answer = make(chan struct{}), answer
	return b.asked, sync.OnceFunc(func() { close(answer) })
}

func (b *bank) status(ctx context.Context) (string, error) {
	b.mu.Lock()
	now, answer := b.now, b.answer
	if answer != nil {
		close(b.asked)
		b.answer = nil
	}
	b.mu.Unlock()
	if answer == nil {
		return now, nil
	}
	select {
	case <-answer:
		return now, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

var web = &http.Client{}

// deliver posts an event once, and returns who answered, what, and whether it was taken.
func deliver(ctx context.Context, url string, e event) (replica, answer string, taken bool, err error) {
	body, err := json.Marshal(e)
	if err != nil {
		return "", "", false, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return "", "", false, err
	}
	resp, err := web.Do(req)
	if err != nil {
		return "", "", false, err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	text, err := io.ReadAll(resp.Body)
	return resp.Header.Get("Replica"), fmt.Sprintf("%d %s", resp.StatusCode, strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", "; ")), resp.StatusCode == http.StatusOK, err
}

// A mailer counts what it sends. To send takes a while.
type mailer struct {
	mu   sync.Mutex
	sent []string
}

func (m *mailer) send(ctx context.Context, text string) error {
	select {
	case <-time.After(200 * time.Millisecond):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sent = append(m.sent, text)
	return nil
}

func (m *mailer) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.sent)
}
