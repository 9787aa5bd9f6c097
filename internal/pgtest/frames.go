package pgtest

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
)

// A message is one frame of the protocol: type, length, body. The first one of a client has no type: 0 here.
type message struct {
	kind byte
	raw  []byte
}

const (
	maxMessage = 64 << 20

	cancelRequest = 80877102
	sslRequest    = 80877103
	gssRequest    = 80877104
)

// readMessage reads a frame with a type.
func readMessage(r *bufio.Reader) (message, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return message{}, err
	}
	raw, err := readBody(r, head[:], 1)
	return message{kind: head[0], raw: raw}, err
}

// readStartup reads the frame without a type that opens a connection, and its code.
func readStartup(r *bufio.Reader) (message, uint32, error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return message{}, 0, err
	}
	raw, err := readBody(r, head[:], 0)
	return message{raw: raw}, binary.BigEndian.Uint32(head[4:]), err
}

// readBody completes a frame of which head is read and whose length, which counts itself, stands at an offset.
func readBody(r *bufio.Reader, head []byte, at int) ([]byte, error) {
	size := int64(binary.BigEndian.Uint32(head[at:])) + int64(at)
	if size < int64(len(head)) || size > maxMessage {
		return nil, fmt.Errorf("pgtest: a frame of %d bytes: not PostgreSQL's protocol", size)
	}
	raw := make([]byte, size)
	copy(raw, head)
	_, err := io.ReadFull(r, raw[len(head):])
	return raw, err
}

// Counts are the messages that a proxy has passed on, by type and direction, over all its connections. A client's first
// message has no type and counts as 0.
type Counts struct {
	ToServer, ToClient map[byte]int
}

func newCounts() Counts { return Counts{ToServer: map[byte]int{}, ToClient: map[byte]int{}} }

// Counts returns what has been passed on so far. Whoever has read an answer finds it counted.
func (p *Proxy) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Counts{ToServer: maps.Clone(p.counts.ToServer), ToClient: maps.Clone(p.counts.ToClient)}
}

// Since returns what came after an earlier count.
func (c Counts) Since(before Counts) Counts {
	return Counts{ToServer: minus(c.ToServer, before.ToServer), ToClient: minus(c.ToClient, before.ToClient)}
}

func minus(a, b map[byte]int) map[byte]int {
	rest := map[byte]int{}
	for kind, n := range a {
		if n -= b[kind]; n != 0 {
			rest[kind] = n
		}
	}
	return rest
}

// RoundTrips is how many requests the server was asked to answer: Sync, simple Query and function call, each of which
// ends with one ReadyForQuery. Opening a connection is none.
func (c Counts) RoundTrips() int { return c.ToServer['S'] + c.ToServer['Q'] + c.ToServer['F'] }

// count notes messages on their way to d. It comes before the sending, so that a count is never behind an answer.
func (p *Proxy) count(d Direction, messages []message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kinds := p.counts.ToServer
	if d == ToClient {
		kinds = p.counts.ToClient
	}
	for _, m := range messages {
		kinds[m.kind]++
	}
}
