package pgtest

import (
	"bytes"
	"slices"
	"sync"
)

// A trap waits for a request and makes the connection break at the worst moment.
type trap struct {
	containing []byte
	atReply    bool
	sprung     chan struct{}
}

// LoseNextReply lets the next request that contains a text reach the server, waits for the whole answer, and cuts the
// connection instead of passing it on: the server has committed, and the client cannot know. The text may be SQL or an
// argument, as they stand on the wire; "" matches every request, the preparation of a statement too. The channel is closed
// when it has happened. It happens once.
func (p *Proxy) LoseNextReply(containing string) <-chan struct{} { return p.lay(containing, true) }

// LoseNextRequest cuts the connection instead of passing on the next request that contains a text: the server never saw
// it, and the client cannot know. Otherwise it is like LoseNextReply.
func (p *Proxy) LoseNextRequest(containing string) <-chan struct{} { return p.lay(containing, false) }

func (p *Proxy) lay(containing string, atReply bool) <-chan struct{} {
	t := &trap{containing: []byte(containing), atReply: atReply, sprung: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.traps = append(p.traps, t)
	return t.sprung
}

// trapFor takes the first trap that a request walks into.
func (p *Proxy) trapFor(request []byte) *trap {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.traps, func(t *trap) bool { return bytes.Contains(request, t.containing) })
	if i < 0 {
		return nil
	}
	t := p.traps[i]
	p.traps = slices.Delete(p.traps, i, i+1)
	return t
}

// goesOn reports whether more of a request follows a message of this kind: Parse, Bind, Describe, Execute, Close.
func goesOn(kind byte) bool { return bytes.IndexByte([]byte("PBDEC"), kind) >= 0 }

// isAsked reports whether a client's message asks for one ReadyForQuery: Sync, Query, FunctionCall.
func isAsked(kind byte) bool { return bytes.IndexByte([]byte("SQF"), kind) >= 0 }

// answers pairs the requests of a link with their answers, which come in the same order.
type answers struct {
	mu      sync.Mutex
	pending []*trap // of each request without a full answer yet; nil for most
	session bool    // the ReadyForQuery that opens the session, which nobody asked for, has come
}

// ask notes a request. It springs the trap that loses requests, and then reports false.
func (l *link) ask(request []message) bool {
	if !isAsked(request[len(request)-1].kind) {
		return true
	}
	t := l.proxy.trapFor(slices.Concat(raws(request)...))
	if t != nil && !t.atReply {
		l.cut()
		close(t.sprung)
		return false
	}
	l.answers.mu.Lock()
	defer l.answers.mu.Unlock()
	l.answers.pending = append(l.answers.pending, t)
	return true
}

// answered notes a message of the server and reports whether to pass it on. At the end of an answer that is to be lost it
// springs the trap.
func (l *link) answered(m message) bool {
	a := &l.answers
	a.mu.Lock()
	defer a.mu.Unlock()
	end := m.kind == 'Z'
	if !a.session || len(a.pending) == 0 {
		a.session = a.session || end
		return true
	}
	t := a.pending[0]
	if end {
		a.pending = a.pending[1:]
	}
	if t != nil && end {
		l.cut()
		close(t.sprung)
	}
	return t == nil
}

func raws(messages []message) [][]byte {
	all := make([][]byte, len(messages))
	for i, m := range messages {
		all[i] = m.raw
	}
	return all
}
