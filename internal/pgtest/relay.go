package pgtest

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
)

// A Relay passes bytes on without looking at them, between whoever connects and a server: the way by which a standby follows,
// or the address of a service that moves from one server to the next. Its methods may be called from any goroutine at any time,
// and return at once.
type Relay struct {
	ln net.Listener
	wg sync.WaitGroup // accept, and the goroutines of every connection

	mu      sync.Mutex
	to      string        // host:port
	open    chan struct{} // closed: bytes may pass
	pairs   map[*pair]struct{}
	stopped bool
}

// A pair is one connection, on both sides of the relay.
type pair struct {
	sides [2]net.Conn
	over  chan struct{}
	once  sync.Once
}

// NewRelay starts a relay to a server; it ends, with its connections, when the test does.
func NewRelay(t testing.TB, to *pgtemp.Server) *Relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	r := &Relay{ln: ln, open: make(chan struct{}), pairs: map[*pair]struct{}{}}
	close(r.open)
	r.To(to)
	r.wg.Go(r.accept)
	t.Cleanup(r.close)
	return r
}

// Addr is the host:port of the relay.
func (r *Relay) Addr() string { return r.ln.Addr().String() }

// URL returns a database's URL through the relay, whichever server that leads to.
func (r *Relay) URL(d *Database) string {
	u := parsed(d.URL)
	u.Host = r.Addr()
	return u.String()
}

// To lets new connections lead to another server.
func (r *Relay) To(s *pgtemp.Server) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = parsed(s.URL("")).Host
}

// Freeze holds back all bytes, in both directions, until Cut.
func (r *Relay) Freeze() {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.open:
		r.open = make(chan struct{})
	default: // frozen already
	}
}

// Cut resets every connection. What was held back is lost. New connections pass again.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := range r.pairs {
		p.cut()
	}
	select {
	case <-r.open:
	default:
		close(r.open)
	}
}

// accept is the goroutine that serves every connection.
func (r *Relay) accept() {
	for {
		in, err := r.ln.Accept()
		if err != nil {
			return // closed
		}
		r.wg.Go(func() { r.serve(in) })
	}
}

func (r *Relay) serve(in net.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r.mu.Lock()
	to := r.to
	r.mu.Unlock()
	var dialer net.Dialer
	out, err := dialer.DialContext(ctx, "tcp", to)
	if err != nil { // the server is down: so are we
		reset(in)
		return
	}
	p := &pair{sides: [2]net.Conn{in, out}, over: make(chan struct{})}
	r.mu.Lock()
	if r.stopped {
		p.cut()
	}
	r.pairs[p] = struct{}{}
	r.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { r.pass(p, in, out) })
	both.Go(func() { r.pass(p, out, in) })
	both.Wait()
	r.mu.Lock()
	delete(r.pairs, p)
	r.mu.Unlock()
}

// pass moves bytes one way until either side ends.
func (r *Relay) pass(p *pair, from, to net.Conn) {
	defer p.cut()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		r.mu.Lock()
		open := r.open
		r.mu.Unlock()
		select {
		case <-open:
		case <-p.over:
			return
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *pair) cut() {
	p.once.Do(func() {
		close(p.over)
		for _, side := range p.sides {
			reset(side)
		}
	})
}

// close ends the relay and joins its goroutines.
func (r *Relay) close() {
	r.mu.Lock()
	r.stopped = true
	r.mu.Unlock()
	_ = r.ln.Close()
	r.Cut()
	r.wg.Wait()
}
