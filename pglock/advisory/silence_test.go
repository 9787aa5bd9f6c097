package advisory_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock/advisory"
)

// The network goes silent between the connection and the question, and no ctx bounds the call. TryAcquire ends all the same, and Acquire goes on
// over another connection, which works.
func TestASilentNetworkIsNotWaitedForWithoutEnd(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]bool{"TryAcquire": false, "Acquire": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.Empty(t)
			p := pgtest.NewProxy(t, d)
			pc := poolConfig(t, p.URL())
			connected := 0
			pc.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
				if connected++; connected == 2 {
					p.Resume()
				}
				return nil
			}
			pc.ConnConfig.Tracer = &silencer{proxy: p}
			c, _ := ofPool(t, pc)
			call := c.TryAcquire
			if wait {
				call = c.Acquire
			}
			got := happens(t, "the call comes back", async(func() acquired {
				l, err := call(context.Background(), advisory.Name("a"))
				return acquired{l, err}
			}))
			if wait {
				wantErr(t, "Acquire", got.err, nil)
				release(t, got.lock)
			} else {
				wantErr(t, "TryAcquire", got.err, context.DeadlineExceeded)
				p.Resume()
			}
			d.WaitFor(t, noLocks)
		})
	}
}

// A silencer stalls a proxy before the second statement of a client: the first one asks who the backend is.
type silencer struct {
	proxy *pgtest.Proxy
	sent  int
}

func (s *silencer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	if s.sent++; s.sent == 2 {
		s.proxy.Stall(pgtest.Both)
	}
	return ctx
}

func (*silencer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
