package advisory_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock/advisory"
)

// A panicker is a tracer that panics at statement number at.
type panicker struct{ n, at int }

func (p *panicker) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	if p.n++; p.n == p.at {
		panic("a tracer")
	}
	return ctx
}

func (p *panicker) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Something of the pool's panics while a lock is acquired, and the caller recovers: the key is free, on the server and in this client.
func TestAPanicWhileAcquiringLeavesNoLock(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	key := advisory.Name("panic")
	for at := range 4 { // 0: the hook
		pc := poolConfig(t, d.URL)
		calls := 0
		pc.ConnConfig.Tracer = &panicker{at: at}
		pc.AfterConnect = func(context.Context, *pgx.Conn) error {
			if calls++; calls == 1 && at == 0 {
				panic("a hook")
			}
			return nil
		}
		c, _ := ofPool(t, pc)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("statement %d did not panic", at)
				}
			}()
			take(t, c, key)
		}()
		d.WaitFor(t, `SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pglock/advisory')`)
		release(t, take(t, c, key))
	}
}
