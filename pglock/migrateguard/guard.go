package migrateguard

import (
	"context"
	"errors"
	"fmt"

	"github.com/golang-migrate/migrate/v4/source"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/deadline"
	"github.com/fencedlock/fencedlock/pglock"
)

// A Guard runs the migrations of one source on one database. It has nothing open between two calls, so there is nothing to close.
// Safe for concurrent use: one call at a time works, the others wait for it.
type Guard struct {
	pool *pgxpool.Config // how to connect
	src  source.Driver
	cfg  Config
	turn chan struct{} // holds one value while a call works: a source is for one goroutine at a time
}

// New makes a guard that connects as pool does, with its settings and hooks, but never takes one of its connections: a pool of one,
// or one that is busy, is no hindrance. The source is any of golang-migrate's (source/iofs for embedded files); it stays the
// caller's, as the pool does, and guards may share it. New does not block and sends nothing. A nil pool or source, or a Config that cannot work, is ErrInvalid.
func New(pool *pgxpool.Pool, src source.Driver, cfg Config) (*Guard, error) {
	if pool == nil {
		return nil, fmt.Errorf("%w: the pool is nil", ErrInvalid)
	}
	return newGuard(pool.Config(), src, cfg)
}

// Open is New for those who have a connection string, a URL or key=value settings as pgxpool.ParseConfig takes them, and no
// pool: services on database/sql, or those whose pool goes through a pooler while there is a direct way too. (Golang-migrate's own
// parameters, x-migrations-table and its like, are no part of it: see Config.) A string that it does not take is ErrInvalid.
func Open(connString string, src source.Driver, cfg Config) (*Guard, error) {
	pc, err := pgxpool.ParseConfig(connString)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return newGuard(pc, src, cfg)
}

func newGuard(pc *pgxpool.Config, src source.Driver, cfg Config) (*Guard, error) {
	if src == nil {
		return nil, fmt.Errorf("%w: the source is nil", ErrInvalid)
	}
	cfg, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	g := &Guard{pool: pc, src: wholeFiles{src}, cfg: cfg, turn: make(chan struct{}, 1)}
	locks, err := g.locks() // now, and not only when a migration is pending
	if err != nil {
		return nil, fmt.Errorf("%w: Config.Lease: %w", ErrInvalid, err)
	}
	return g, locks.Close(context.Background()) // it has nothing open
}

// locks makes a client for the lease.
func (g *Guard) locks() (*pglock.Client, error) {
	pool, err := g.idlePool()
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	return pglock.New(pool, g.cfg.Lease)
}

// idlePool is for those who connect as a pool does, and not through it.
func (g *Guard) idlePool() (*pgxpool.Pool, error) {
	pc := g.pool.Copy()
	pc.MinConns, pc.MinIdleConns = 0, 0
	return pgxpool.NewWithConfig(context.Background(), pc)
}

// A job is what a call does.
type job struct {
	name  string
	route route                                // what to run; nil: it works on the version itself
	act   func(context.Context, *runner) error // without a route
}

// change does a job under the lock.
func (g *Guard) change(ctx context.Context, j job) error {
	w := &wait{limit: g.cfg.Wait}
	if err := g.takeTurn(ctx, w); err != nil {
		return named(ctx, j.name, err)
	}
	defer g.leaveTurn()
	r, err := g.look(ctx, j.route)
	if err != nil || r == nil {
		return named(ctx, j.name, err)
	}
	over := false
	defer func() {
		if !over { // Notify, a hook or the source has panicked: whoever recovers from that is not to keep the lock
			r.letGo(ctx, nil) //nolint:errcheck // the panic goes on
		}
	}()
	if err = r.hold(ctx, w); err == nil {
		err = r.finish(ctx, r.work(ctx, j))
	}
	over = true
	return named(ctx, j.name, err)
}

// look finds out without the lock whether there is anything to do, and returns nil if not. Only that is final: everything else is
// decided under the lock.
func (g *Guard) look(ctx context.Context, way route) (*runner, error) {
	r := &runner{g: g}
	kept := false
	defer func() {
		if !kept {
			r.hangUp(ctx)
		}
	}()
	var err error
	if r.session, err = g.connect(ctx); err != nil {
		return nil, err
	}
	r.state, err = g.readState(ctx, r.session.conn, g.cfg.Schema)
	idle := false
	if err == nil && way != nil && !r.dirty {
		list, planErr := g.plan(way, r.version)
		idle = planErr == nil && len(list) == 0
	}
	if err == nil && !idle {
		err = r.refuse()
	}
	if err != nil || idle {
		return nil, err
	}
	kept = true
	return r, nil
}

// plan is what to run from a version.
func (g *Guard) plan(r route, from int) ([]Migration, error) {
	if err := known(g.src, from); err != nil {
		return nil, err
	}
	return r(g.src, from)
}

func (g *Guard) takeTurn(ctx context.Context, w *wait) error {
	select {
	case g.turn <- struct{}{}:
		return nil
	default:
	}
	waiting, cancel := w.begin(ctx)
	defer cancel()
	select {
	case g.turn <- struct{}{}:
		return nil
	case <-waiting.Done():
		return w.gaveUp(waiting, errors.New("another call of this Guard"))
	}
}

func (g *Guard) leaveTurn() { <-g.turn }

// named says which call failed, and why ctx ended where that is what it was.
func named(ctx context.Context, call string, err error) error {
	if err == nil {
		return nil
	}
	if cause := deadline.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return &callError{call, err}
}

// A callError names the package once.
type callError struct {
	call string
	err  error
}

func (e *callError) Error() string { return "migrateguard: " + e.call + ": " + unprefixed(e.err) }
func (e *callError) Unwrap() error { return e.err }
