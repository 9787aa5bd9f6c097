package migrateguard_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/golang-migrate/migrate/v4/source"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock/migrateguard"
)

// panics makes a call that must panic, and recovers from that, as a server's handlers do.
func panics(t *testing.T, call func() error) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Fatal("it did not panic")
		}
	}()
	t.Fatalf("it did not panic: %v", call())
}

// Whatever is the caller's own panics, and the process lives on: neither the lock nor a connection stays behind, and other calls go on.
func TestAPanicLeavesNoLock(t *testing.T) {
	t.Parallel()
	for name, session := range map[string]bool{"lease": false, "session": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for what, broken := range map[string]func(*pgxpool.Config, *migrateguard.Config, source.Driver) source.Driver{
				"Notify": func(_ *pgxpool.Config, cfg *migrateguard.Config, src source.Driver) source.Driver {
					cfg.Notify = func(migrateguard.Event) { panic("Notify") }
					return src
				},
				"AfterConnect": func(pc *pgxpool.Config, _ *migrateguard.Config, src source.Driver) source.Driver {
					pc.AfterConnect = func(context.Context, *pgx.Conn) error { panic("AfterConnect") }
					return src
				},
				"the source": func(_ *pgxpool.Config, _ *migrateguard.Config, src source.Driver) source.Driver {
					return panicking{src}
				},
			} {
				d := pgtest.DB(t)
				d.Exec(t, runs)
				cfg := migrateguard.Config{Session: session}
				src := files(t, "1_a.up.sql", "INSERT INTO public.runs VALUES (1)")
				var bad source.Driver
				pool := poolAs(t, d.URL, func(pc *pgxpool.Config) { bad = broken(pc, &cfg, src) })
				g, err := migrateguard.New(pool, bad, cfg)
				must(t, "New", err)
				panics(t, func() error { return g.Up(soon(t)) })
				nothingLeft(t, d)
				panics(t, func() error { return g.Up(soon(t)) }) // and not: another call of this Guard
				must(t, "Up after a panic of "+what, open(t, d.URL, src, migrateguard.Config{Session: session, Wait: 5 * time.Second}).Up(soon(t)))
				wantVersion(t, d, "1")
			}
		})
	}
}

// A waiter whose Notify panics has taken nothing yet, or has the lease and waits for a backend.
func TestAPanicOfAWaiterLeavesNoLock(t *testing.T) {
	t.Parallel()
	for name, holder := range map[string]migrateguard.Config{"behind a lease": {}, "behind a session": {Session: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			gate := newGate(t, d)
			runner := async(func() error { return open(t, d.URL, files(t, "1_a.up.sql", gated), holder).Up(soon(t)) })
			atWork(t, d)
			g := open(t, d.URL, files(t, "1_a.up.sql", gated), migrateguard.Config{Notify: func(migrateguard.Event) { panic("Notify") }})
			panics(t, func() error { return g.Up(soon(t)) })
			gate.release()
			must(t, "Up of the runner", happens(t, "the runner ends", runner))
			nothingLeft(t, d)
		})
	}
}

// A panicking source has versions, and no files.
type panicking struct{ source.Driver }

func (panicking) ReadUp(uint) (io.ReadCloser, string, error) { panic("the source") }
