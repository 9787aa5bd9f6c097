package pgtest

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"
)

// A Proxy stands between a client and the server, understands the frames of PostgreSQL's protocol, and misbehaves on
// demand. Its methods may be called from any goroutine at any time, and return at once.
type Proxy struct {
	url    string
	server string // host:port
	ln     net.Listener
	wg     sync.WaitGroup // accept, and the goroutines of every link

	mu      sync.Mutex
	links   map[*link]struct{}
	refuse  bool
	gates   [2]chan struct{} // by direction; closed: bytes may pass
	delays  [2]time.Duration
	counts  Counts
	traps   []*trap
	stopped bool
}

// A Direction is one of the two ways through a proxy, or both.
type Direction int

// The directions.
const (
	ToServer Direction = iota
	ToClient
	Both
)

// each returns the single directions of d.
func (d Direction) each() []Direction {
	if d == Both {
		return []Direction{ToServer, ToClient}
	}
	return []Direction{d}
}

// NewProxy starts a proxy in front of the database's server; it ends, with its connections, when the test does. The client
// side has no TLS.
func NewProxy(t testing.TB, d *Database) *Proxy {
	t.Helper()
	d.spoiled.Store(true)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	u := parsed(d.URL)
	server := u.Host
	if u.Port() == "" {
		server = net.JoinHostPort(u.Hostname(), "5432")
	}
	u.Host = ln.Addr().String()
	query := u.Query()
	query.Set("sslmode", "disable")
	u.RawQuery = query.Encode()

	p := &Proxy{url: u.String(), server: server, ln: ln, links: map[*link]struct{}{}, counts: newCounts()}
	for i := range p.gates {
		p.gates[i] = make(chan struct{})
		close(p.gates[i])
	}
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// URL returns the database's URL through the proxy.
func (p *Proxy) URL() string { return p.url }

// Conns returns how many connections are open.
func (p *Proxy) Conns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Cut resets every open connection, on both sides. New ones are accepted.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// Refuse resets new connections as soon as they are made. With Cut, the server is gone.
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = on
}

// Stall holds back the bytes that go in a direction, until Resume. The connections stay open, and new ones are made but
// hear nothing.
func (p *Proxy) Stall(dir Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range dir.each() {
		select {
		case <-p.gates[d]:
			p.gates[d] = make(chan struct{})
		default: // stalled already
		}
	}
}

// Resume ends every Stall. What was held back is delivered.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, gate := range p.gates {
		select {
		case <-gate:
		default:
			close(gate)
		}
	}
}

// Delay makes what is read from now on arrive later by d in a direction: a longer way, not a narrower one. Zero ends it.
func (p *Proxy) Delay(dir Direction, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range dir.each() {
		p.delays[one] = d
	}
}

func (p *Proxy) gate(d Direction) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gates[d]
}

func (p *Proxy) delay(d Direction) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.delays[d]
}

// accept is the goroutine that makes a link of every connection.
func (p *Proxy) accept() {
	for {
		client, err := p.ln.Accept()
		if err != nil {
			return // closed
		}
		p.wg.Go(func() { p.connect(client) })
	}
}

func (p *Proxy) connect(client net.Conn) {
	p.mu.Lock()
	refuse := p.refuse || p.stopped
	p.mu.Unlock()
	if refuse {
		reset(client)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var dialer net.Dialer
	server, err := dialer.DialContext(ctx, "tcp", p.server)
	if err != nil { // the server is down: so are we
		reset(client)
		return
	}
	l := p.newLink(client, server)
	p.mu.Lock()
	if p.stopped {
		l.cut()
	}
	p.links[l] = struct{}{}
	p.mu.Unlock()
	l.run()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// close ends the proxy and joins its goroutines.
func (p *Proxy) close() {
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
	_ = p.ln.Close()
	p.Cut()
	p.wg.Wait()
}

// reset closes a connection with RST, so that the peer gets an error instead of an orderly end.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
