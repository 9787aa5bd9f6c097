package main

import (
	"fmt"
	"os"
	"sync"
	"time"
)

// A timeline prints who does what, and when since the beginning. With colours on a terminal, and plain elsewhere.
type timeline struct {
	mu      sync.Mutex // the replicas and the director speak at the same time
	out     *os.File
	start   time.Time
	colours bool
}

func newTimeline(out *os.File) *timeline {
	info, err := out.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0
	return &timeline{out: out, start: time.Now(), colours: terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

// colour is the one of an actor.
var colour = map[string]string{
	"director": "35", "database": "34", "replica A": "33", "replica B": "32", "replica C": "36",
}

func (t *timeline) say(actor, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	fmt.Fprintf(t.out, "%6.2f s  %s  %s\n", time.Since(t.start).Seconds(), t.paint(actor, fmt.Sprintf("%-9s", actor)), text)
}

// end prints what is to be learned.
func (t *timeline) end(lesson string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.out, "\n%s\n", lesson)
}

func (t *timeline) paint(key, text string) string {
	if !t.colours {
		return text
	}
	return "\x1b[" + colour[key] + "m" + text + "\x1b[0m"
}
