package pgtest

import (
	"bufio"
	"net"
	"slices"
	"sync"
	"time"
)

// A link is one connection through a proxy. Each direction has a reader, which takes the frames apart and decides what
// becomes of them, and a writer, which delivers them when their time has come: so a delay makes the way longer and does
// not add up over frames.
type link struct {
	proxy          *Proxy
	client, server net.Conn
	answers        answers
	over           chan struct{} // closed by cut and end
	once           sync.Once
}

// A parcel is what one write delivers.
type parcel struct {
	due      time.Time
	messages []message
}

func (p *Proxy) newLink(client, server net.Conn) *link {
	return &link{proxy: p, client: client, server: server, over: make(chan struct{})}
}

// run moves messages until both directions have ended.
func (l *link) run() {
	var wg sync.WaitGroup
	toServer, toClient := make(chan parcel, 256), make(chan parcel, 256)
	wg.Go(func() { defer close(toServer); l.readClient(toServer) })
	wg.Go(func() { defer close(toClient); l.readServer(toClient) })
	wg.Go(func() {
		l.deliver(ToServer, l.server, toServer)
		if tcp, ok := l.server.(*net.TCPConn); ok {
			_ = tcp.CloseWrite() // the client has gone; the server may have something left to say
		}
	})
	wg.Go(func() { l.deliver(ToClient, l.client, toClient); l.end() })
	wg.Wait()
}

// readClient passes requests on whole, so that one can be lost before any of it was executed.
func (l *link) readClient(out chan<- parcel) {
	r := bufio.NewReaderSize(l.client, 64<<10)
	if !l.open(r, out) {
		return
	}
	var request []message
	for {
		m, err := readMessage(r)
		if err != nil {
			return
		}
		request = append(request, m)
		if goesOn(m.kind) {
			continue
		}
		if !l.ask(request) || !l.send(out, ToServer, request) {
			return
		}
		request = nil
	}
}

// open passes on what opens a connection, and reports whether a session follows.
func (l *link) open(r *bufio.Reader, out chan<- parcel) bool {
	for {
		m, code, err := readStartup(r)
		switch {
		case err != nil:
			return false
		case code == sslRequest || code == gssRequest:
			if _, err := l.client.Write([]byte{'N'}); err != nil { // no encryption here: frames must be readable
				return false
			}
		default:
			return l.send(out, ToServer, []message{m}) && code != cancelRequest
		}
	}
}

// readServer passes on what there is, several messages at a time, as the server sent them.
func (l *link) readServer(out chan<- parcel) {
	r := bufio.NewReaderSize(l.server, 64<<10)
	for {
		var some []message
		for len(some) == 0 || r.Buffered() > 0 && len(some) < 100 {
			m, err := readMessage(r)
			if err != nil {
				l.send(out, ToClient, some)
				return
			}
			if l.answered(m) {
				some = append(some, m)
			}
		}
		if !l.send(out, ToClient, some) {
			return
		}
	}
}

// send hands messages to the writer; false means that the link is over.
func (l *link) send(out chan<- parcel, d Direction, messages []message) bool {
	select {
	case out <- parcel{due: time.Now().Add(l.proxy.delay(d)), messages: messages}:
		return true
	case <-l.over:
		return false
	}
}

// deliver writes parcels when they are due and the way is open.
func (l *link) deliver(d Direction, to net.Conn, in <-chan parcel) {
	for p := range in {
		if !l.wait(d, p.due) {
			return // what is left in the channel has nowhere to go
		}
		l.proxy.count(d, p.messages)
		if _, err := to.Write(slices.Concat(raws(p.messages)...)); err != nil {
			l.cut()
			return
		}
	}
}

// wait blocks until a parcel may go, and reports false if the link ended before.
func (l *link) wait(d Direction, due time.Time) bool {
	if rest := time.Until(due); rest > 0 {
		timer := time.NewTimer(rest)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.over:
			return false
		}
	}
	select {
	case <-l.proxy.gate(d):
		return true
	case <-l.over:
		return false
	}
}

// cut resets both sides. The goroutines end by themselves.
func (l *link) cut() {
	l.once.Do(func() {
		close(l.over)
		reset(l.client)
		reset(l.server)
	})
}

// end closes both sides in an orderly way: the server has said all it had to say.
func (l *link) end() {
	l.once.Do(func() {
		close(l.over)
		_ = l.client.Close()
		_ = l.server.Close()
	})
}
