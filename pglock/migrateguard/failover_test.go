package migrateguard_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock/migrateguard"
)

// A before calls a function, once, before a statement that begins with a text, when one that contains another has been sent.
type before struct {
	text, after string
	call        func()

	mu    sync.Mutex // the client of the lease sends statements, too
	armed bool
}

func (b *before) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.armed && b.call != nil && strings.HasPrefix(data.SQL, b.text) {
		b.call()
		b.call = nil
	}
	b.armed = b.armed || strings.Contains(data.SQL, b.after)
	return ctx
}

func (*before) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// The primary is lost between two statements, and a standby takes over that lacks the last migrations, and their versions. What it lacks is
// neither recorded there nor told as done: that would leave it out for good. Behind a pooler the runner's own connection lives on.
func TestAFailoverThatTakesMigrationsBackIsNoSuccess(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		pooler, session, down bool
		text, after           string // when it happens
		leaves, ran           string
	}{
		"in a commit":                {text: "commit", after: "VALUES (3)", leaves: "1", ran: "1"},
		"in a commit, down, session": {session: true, down: true, text: "commit", after: "VALUES (-1)", leaves: "2", ran: "1 2 3 -3"},
		"pooler, before the record":  {pooler: true, text: "BEGIN ISOLATION", after: "VALUES (2)", leaves: "1", ran: "1"},
		"pooler, between two":        {pooler: true, text: "SELECT w.schema", after: "VALUES (2)", leaves: "1", ran: "1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, d := pgtest.OwnServer(t, pgtemp.Options{})
			d.Exec(t, runs)
			standby := d.Replica(t, pgtemp.StandbyOptions{})
			service := pgtest.NewRelay(t, d.Server)
			url := service.URL(d)
			if test.pooler {
				behind := pgtest.On(t, d.Server, d.Name)
				behind.URL = url
				url = pgtest.PgBouncer(t, behind)
			}
			src := files(t,
				"1_a.up.sql", "INSERT INTO public.runs VALUES (1)", "1_a.down.sql", "INSERT INTO public.runs VALUES (-1)",
				"2_b.up.sql", "INSERT INTO public.runs VALUES (2)", "2_b.down.sql", "INSERT INTO public.runs VALUES (-2)",
				"3_c.up.sql", "INSERT INTO public.runs VALUES (3)", "3_c.down.sql", "INSERT INTO public.runs VALUES (-3)")
			cfg := migrateguard.Config{Session: test.session}
			if test.down {
				must(t, "Up", open(t, d.URL, src, cfg).Up(soon(t)))
			}
			cfg.Notify = func(e migrateguard.Event) {
				if e.Kind == migrateguard.Finished && e.K == 1 {
					standby.WaitReplayed(t, d)
					standby.Way.Freeze()
				}
			}
			pool := poolAs(t, url, func(c *pgxpool.Config) {
				c.ConnConfig.Tracer = &before{text: test.text, after: test.after, call: func() {
					must(t, "Kill", d.Server.Kill())
					must(t, "Promote", standby.Server.Promote(soon(t)))
					service.To(standby.Server)
				}}
			})
			g, err := migrateguard.New(pool, src, cfg)
			must(t, "New", err)
			call := g.Up
			if test.down {
				call = g.Down
			}

			err = call(soon(t))

			if err == nil || errors.Is(err, migrateguard.ErrMigrated) || !strings.Contains(err.Error(), "another has taken over") {
				t.Errorf("the call = %v, want it to say that another server has taken over", err)
			}
			wantVersion(t, standby.Database, test.leaves)
			if got := pgtest.Query[string](t, standby.Database, `SELECT string_agg(version::text, ' ') FROM runs`); got != test.ran {
				t.Errorf("what ran is %s, want %s", got, test.ran)
			}
		})
	}
}
