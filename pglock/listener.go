package pglock

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// proofWithin is how long the proof that notifications arrive may take.
	proofWithin = 5 * time.Second

	// proofEvery is how often it is repeated: a connection can go silent.
	proofEvery = 15 * time.Second

	maxListenBackoff = 30 * time.Second

	// soonOver is how often waiters are refused, each time soonAfter the one before at the latest, until a connection is made to listen: most
	// waits are short, and most clients wait seldom.
	soonOver  = 3
	soonAfter = 10 * time.Second

	// revocations is the channel on which revoke tells tokens, of all schemas in the database.
	revocations = "pglock_revoked"
)

// The listener hears who is woken, and which grants are revoked. It has one connection, whatever the number of waiters, made when somebody waits for what
// another process holds or holds what is renewed seldom, and closed after a minute in which nobody did. It is believed only after a notification that this
// client sent to itself, over the work line, has arrived: a pooler takes LISTEN and stays silent.
type listener struct {
	client  *Client
	dialer  *dialer
	id      acquisition // of the client, in the table of waits
	channel string
	wake    chan struct{} // has room for one

	proveEvery time.Duration // proofEvery, but for tests

	mu       sync.Mutex
	wanted   instant // when somebody waited last
	heard    bool    // a proof arrived, over the connection that there is
	refusals int     // of waiters in a row
	refusal  instant // the last of them
}

func newListener(c *Client, d *dialer) *listener {
	id := newAcquisition()
	d.listens = true
	return &listener{client: c, dialer: d, id: id, channel: "pglock_" + id.String(), wake: make(chan struct{}, 1), proveEvery: proofEvery}
}

// refused notes that a waiter has asked in vain, and says whether a release can wake this client.
func (l *listener) refused() bool {
	clock := l.client.clock
	l.mu.Lock()
	if clock.left(l.refusal) < -soonAfter {
		l.refusals = 0
	}
	l.refusals++
	l.refusal = clock.now()
	often := l.refusals > soonOver
	l.mu.Unlock()
	return l.hears(often)
}

// hears says whether a release can wake this client; want says that it should.
func (l *listener) hears(want bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !want && !l.heard {
		return false
	}
	l.wanted = l.client.clock.now()
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return l.heard
}

// unwanted says whether nobody has waited for so long that the connection is closed.
func (l *listener) unwanted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wanted.isZero() || l.client.clock.left(l.wanted) < -idleAfter
}

// run is the listener's goroutine, owned by the client. It returns when ctx ends.
func (l *listener) run(ctx context.Context) {
	for tries := 0; ; {
		if l.unwanted() {
			select {
			case <-l.wake:
			case <-ctx.Done():
				return
			}
			continue
		}
		proven, err := l.listen(ctx)
		l.set(false)
		if ctx.Err() != nil {
			return
		}
		if err == nil { // nobody wants it
			continue
		}
		if proven {
			tries = 0
		}
		level := slog.LevelInfo
		if tries > 0 {
			level = slog.LevelDebug // said before
		}
		l.client.log.Log(ctx, level, "pglock: the connection that listens is down: waiters ask more often instead", "error", explain(l.client.cfg.Schema, err))
		select {
		case <-time.After(jitter(min(100*time.Millisecond<<min(tries, 10), maxListenBackoff))):
		case <-ctx.Done():
			return
		}
		tries++
	}
}

// set says whether notifications come.
func (l *listener) set(heard bool) {
	l.mu.Lock()
	changed := l.heard != heard
	l.heard = heard
	l.mu.Unlock()
	if changed {
		l.client.queues.listening(heard)
	}
}

var errSilent = errors.New("a notification to this client itself did not arrive: is a transaction pooler in between? Config.ListenURL can lead around it, to the same database")

// listen hears until the connection breaks, a proof is missing, or nobody wants it any more, which is no error.
func (l *listener) listen(ctx context.Context) (proven bool, err error) {
	conn, _, err := l.dialer.dial(ctx, func(*pgconn.Notice) {})
	if err != nil {
		return false, err
	}
	defer hangUp(conn)
	lctx, cancel := context.WithTimeout(ctx, statementTimeout)
	_, err = conn.Exec(lctx, "LISTEN "+revocations+"; LISTEN "+pgx.Identifier{l.channel}.Sanitize(), pgx.QueryExecModeSimpleProtocol)
	cancel()
	if err != nil {
		return false, err
	}
	clock := l.client.clock
	for number := 1; ; number++ {
		l.client.work.note(&note{verb: proofNote, name: strconv.Itoa(number)})
		arrived, err := l.hear(ctx, conn, clock.now().add(proofWithin), strconv.Itoa(number))
		switch {
		case err != nil:
			return proven, err
		case !arrived:
			return proven, errSilent
		}
		proven = true
		l.set(true)
		if _, err := l.hear(ctx, conn, clock.now().add(l.proveEvery), ""); err != nil {
			return proven, err
		}
		if l.unwanted() {
			return proven, nil
		}
	}
}

// hear takes notifications until then, or until that proof has arrived.
func (l *listener) hear(ctx context.Context, conn *pgx.Conn, until instant, proof string) (arrived bool, err error) {
	for {
		left := l.client.clock.left(until)
		if left <= 0 {
			return false, nil
		}
		wctx, cancel := context.WithTimeout(ctx, left)
		n, err := conn.WaitForNotification(wctx)
		cancel()
		switch {
		case n != nil:
			if n.Channel == revocations {
				if token, err := strconv.ParseInt(n.Payload, 10, 64); err == nil {
					l.client.keeper.revoked(token)
				}
				continue
			}
			wait, b, name, ok := readNotification(n.Payload)
			switch {
			case n.Channel != l.channel || !ok: // not ours: a hook listens, too
			case wait != 0:
				l.client.queues.wake(name, wait, b)
			case name == proof:
				return true, nil
			}
		case ctx.Err() != nil:
			return false, context.Cause(ctx)
		case wctx.Err() == nil || conn.IsClosed():
			return false, err
		}
	}
}

// hangUp closes a connection, and returns when pgx has left it.
func hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn.Close(ctx) //nolint:errcheck // nothing is lost with it
	<-conn.PgConn().CleanupDone()
}
