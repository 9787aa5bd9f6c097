package fence_test

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// Many writers with random tokens and verbs, at every isolation level: the tokens that were let in never go down.
func TestTokensNeverGoDown(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices+`;
		CREATE TABLE log (n bigserial, token bigint);
		CREATE FUNCTION log() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
			'BEGIN INSERT INTO public.log (token) VALUES ((to_jsonb(NEW) ->> TG_ARGV[0])::bigint); RETURN NEW; END';
		CREATE TRIGGER log AFTER INSERT OR UPDATE ON invoices FOR EACH ROW EXECUTE FUNCTION log('fencing_token');
		CREATE TRIGGER log AFTER INSERT OR UPDATE ON pglock.fences FOR EACH ROW WHEN (NEW.last_token > 0) EXECUTE FUNCTION log('last_token')`)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	names := []string{"Update", "Insert", "Upsert", "Delete"}
	var wg sync.WaitGroup
	for worker := range 6 {
		conn := d.Conn(t)
		wg.Go(func() {
			ctx := bounded(t)
			r := rand.New(rand.NewPCG(seed, uint64(worker)))
			for n := range 60 {
				g := grant(fence.Token(1 + 2*n + r.IntN(20)))
				level, name := levels[r.IntN(len(levels))], names[r.IntN(len(names))]
				err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
					return verbs[name](ctx, tx, g)
				})
				if code := sqlState(err); code != "" && code != "40001" {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	wg.Wait()
	const falls = `SELECT count(*) FILTER (WHERE token < before) FROM (SELECT token, lag(token) OVER (ORDER BY n) AS before FROM log) x`
	if n := pgtest.Query[int](t, d, falls); n != 0 {
		t.Errorf("%d writes went below the one before", n)
	}
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM log`); n < 10 {
		t.Errorf("only %d writes got in: the test tests nothing", n)
	}
}
