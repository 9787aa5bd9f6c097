package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// A line is one line of a history file: exactly one of its fields is set.
type line struct {
	Process  *Process  `json:"process,omitempty"`
	Change   *Change   `json:"change,omitempty"`
	HandOver *HandOver `json:"hand_over,omitempty"`
	Trust    *Trust    `json:"trust,omitempty"`
	Write    *Write    `json:"write,omitempty"`
}

// Write writes the history as JSON, one event a line. Files of several processes can be concatenated.
func (h *History) Write(w io.Writer) error {
	buffered := bufio.NewWriter(w)
	enc := json.NewEncoder(buffered)
	enc.SetEscapeHTML(false)
	err := errors.Join(
		encode(enc, h.Processes, func(e *Process) line { return line{Process: e} }),
		encode(enc, h.Changes, func(e *Change) line { return line{Change: e} }),
		encode(enc, h.HandOvers, func(e *HandOver) line { return line{HandOver: e} }),
		encode(enc, h.Trusts, func(e *Trust) line { return line{Trust: e} }),
		encode(enc, h.Writes, func(e *Write) line { return line{Write: e} }),
		buffered.Flush(),
	)
	if err != nil {
		return fmt.Errorf("history: write: %w", err)
	}
	return nil
}

func encode[E any](enc *json.Encoder, events []E, wrap func(*E) line) error {
	for i := range events {
		if err := enc.Encode(wrap(&events[i])); err != nil {
			return err
		}
	}
	return nil
}

// Read reads what Write wrote. It refuses what it does not know: a field that is misspelt would otherwise be an event
// that is never checked.
func Read(r io.Reader) (*History, error) {
	h := &History{}
	dec := json.NewDecoder(bufio.NewReader(r))
	dec.DisallowUnknownFields()
	for n := 1; ; n++ {
		var l line
		switch err := dec.Decode(&l); {
		case errors.Is(err, io.EOF):
			return h, nil
		case err != nil:
			return nil, fmt.Errorf("history: event %d: %w", n, err)
		}
		if err := h.take(l); err != nil {
			return nil, fmt.Errorf("history: event %d: %w", n, err)
		}
	}
}

// take adds the one event of a line.
func (h *History) take(l line) error {
	before := h.Len()
	h.Processes = appendSet(h.Processes, l.Process)
	h.Changes = appendSet(h.Changes, l.Change)
	h.HandOvers = appendSet(h.HandOvers, l.HandOver)
	h.Trusts = appendSet(h.Trusts, l.Trust)
	h.Writes = appendSet(h.Writes, l.Write)
	if n := h.Len() - before; n != 1 {
		return fmt.Errorf("a line holds %d events, want 1", n)
	}
	return nil
}

func appendSet[E any](events []E, e *E) []E {
	if e == nil {
		return events
	}
	return append(events, *e)
}
