package fence_test

import (
	"context"
	"flag"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// What a writer may do in its transaction, to one of two invoices or two resources.
var deeds = map[string]func(ctx context.Context, tx pgx.Tx, g fence.Grant, at int) error{
	"update": func(ctx context.Context, tx pgx.Tx, g fence.Grant, at int) error {
		return invoices.Update(ctx, tx, g, invoice(at, "x"), fence.Again())
	},
	"insert": func(ctx context.Context, tx pgx.Tx, g fence.Grant, at int) error {
		return invoices.Insert(ctx, tx, g, invoice(at, "x"))
	},
	"upsert": func(ctx context.Context, tx pgx.Tx, g fence.Grant, at int) error {
		return invoices.Upsert(ctx, tx, g, invoice(at, "x"), fence.Again())
	},
	"upsert of both": func(ctx context.Context, tx pgx.Tx, g fence.Grant, _ int) error {
		return invoices.UpsertRows(ctx, tx, g, []fence.Row{invoice(1, "x"), invoice(0, "x")})
	},
	"delete": func(ctx context.Context, tx pgx.Tx, g fence.Grant, at int) error {
		return invoices.Delete(ctx, tx, g, key(at))
	},
	"rekey": func(ctx context.Context, tx pgx.Tx, g fence.Grant, at int) error {
		return invoices.Rekey(ctx, tx, g, key(at), key(1-at))
	},
	"raise": func(ctx context.Context, tx pgx.Tx, g fence.Grant, at int) error {
		return fence.Raise(ctx, tx, g, strconv.Itoa(at))
	},
	"raise both": func(ctx context.Context, tx pgx.Tx, g fence.Grant, at int) error {
		return fence.Raise(ctx, tx, g, strconv.Itoa(at), fence.Also(strconv.Itoa(1-at)))
	},
}

// Whatever writers with whatever tokens do in whatever order, at whatever isolation levels, and whenever fences are forgotten: the
// tokens that a row, alive or deleted, or a resource has accepted never fall. What fails is given again with the seed that is printed, and as few steps as
// show it.
func TestAcceptedTokensNeverFall(t *testing.T) {
	d := pgtest.DB(t)
	d.Exec(t, createInvoices+`; ALTER DATABASE `+d.Name+` SET deadlock_timeout = '20ms';
		CREATE TABLE log (n bigserial, what text, token bigint);
		CREATE FUNCTION log() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
			IF TG_TABLE_NAME = 'invoices' THEN
				INSERT INTO public.log (what, token) VALUES ((pglock.fence_row_id('public.invoices', ROW(NEW.id))).id, NEW.fencing_token);
			ELSIF EXISTS (SELECT FROM pglock.fences f WHERE f.relation = NEW.relation AND f.resource = NEW.resource) THEN -- and was not refused
				INSERT INTO public.log (what, token) VALUES (NEW.resource, NEW.last_token);
			END IF;
			RETURN NEW; END $$;
		CREATE FUNCTION age() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.raised_at := 'epoch'; RETURN NEW; END $$;
		CREATE TRIGGER age BEFORE INSERT OR UPDATE ON pglock.fences FOR EACH ROW EXECUTE FUNCTION age();
		CREATE TRIGGER log AFTER INSERT OR UPDATE ON invoices FOR EACH ROW EXECUTE FUNCTION log();
		CREATE CONSTRAINT TRIGGER log AFTER INSERT OR UPDATE ON pglock.fences DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW WHEN (NEW.last_token > 0 AND NEW.resource <> '') EXECUTE FUNCTION log()`)
	m := &matrix{d: d, watch: d.Conn(t)}
	conns, pruner := []*pgx.Conn{d.Conn(t), d.Conn(t), d.Conn(t)}, d.Conn(t)
	checks := pgtest.Rounds(25, 1000)
	if testing.Short() {
		checks = 60 // of which rapid makes a fifth
	}
	if err := flag.Set("rapid.checks", strconv.Itoa(checks)); err != nil {
		t.Fatal(err)
	}
	names := make([]string, 0, len(deeds))
	for name := range deeds {
		names = append(names, name)
	}
	slices.Sort(names) // a seed means the same in every run
	accepted, forgotten := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		ctx := t.Context()
		exec(t, m.watch, `DELETE FROM invoices; DELETE FROM log; DELETE FROM pglock.fences WHERE resource <> ''; UPDATE pglock.fences SET last_token = 0`)
		prunes := &actor{conn: pruner}
		for range rapid.IntRange(2, 6).Draw(rt, "prunes") {
			prunes.steps = append(prunes.steps, step{func() error {
				var n int
				err := pruner.QueryRow(ctx, `SELECT pglock.prune_fences('0', 1000)`).Scan(&n)
				forgotten += n
				return err
			}, func(bool) {}})
		}
		actors := []*actor{prunes}
		for i, conn := range conns {
			actors = append(actors, writes(ctx, rt, conn, names, strconv.Itoa(i)))
		}
		defer abandon(ctx, actors) // rapid leaves a check where it likes when it looks for fewer steps
		for over := false; !over; {
			m.step(t, actors[rapid.IntRange(0, len(actors)-1).Draw(rt, "next")])
			over = true
			for _, a := range actors {
				over = over && a.over()
			}
		}
		const falls = `SELECT count(*) FILTER (WHERE token < before), count(*) FROM
			(SELECT token, lag(token) OVER (PARTITION BY what ORDER BY n) AS before FROM log) x`
		var fell, all int
		if err := m.watch.QueryRow(ctx, falls).Scan(&fell, &all); err != nil {
			rt.Fatal(err)
		}
		if accepted += all; fell > 0 {
			rt.Errorf("%d times a token was accepted below the one before", fell)
		}
	})
	if accepted < 20 || forgotten == 0 && !testing.Short() {
		t.Errorf("only %d writes got in, and %d fences were forgotten: the test tests nothing", accepted, forgotten)
	}
}

// abandon ends all transactions, those first that nobody is in the way of.
func abandon(ctx context.Context, actors []*actor) {
	for busy := true; busy; {
		busy = false
		for _, a := range actors {
			if a.busy != nil {
				select {
				case a.err = <-a.busy:
					a.busy = nil
				case <-time.After(3 * time.Millisecond):
					busy = true
					continue
				}
			}
			_, _ = a.conn.Exec(ctx, `ROLLBACK`) // there may be none
		}
	}
}

// writes is a writer with some transactions, which goes on after a refusal as a careless one would.
func writes(ctx context.Context, rt *rapid.T, conn *pgx.Conn, names []string, label string) *actor {
	a := &actor{conn: conn}
	add := func(take func() error) {
		a.steps = append(a.steps, step{take, func(bool) {}})
	}
	for range rapid.IntRange(1, 2).Draw(rt, label+" transactions") {
		var tx pgx.Tx
		g := grant(fence.Token(rapid.IntRange(1, 6).Draw(rt, label+" token")))
		level := rapid.SampledFrom(levels).Draw(rt, label+" level")
		add(func() (err error) {
			tx, err = conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
			return err
		})
		for range rapid.IntRange(1, 3).Draw(rt, label+" deeds") {
			do := deeds[rapid.SampledFrom(names).Draw(rt, label+" deed")]
			at := rapid.IntRange(0, 1).Draw(rt, label+" at")
			add(func() error {
				_ = do(ctx, tx, g, at) // refused or not, or the transaction is over
				return nil
			})
		}
		keep := rapid.IntRange(0, 4).Draw(rt, label+" end") > 0
		add(func() error {
			if keep {
				_ = tx.Commit(ctx) // a transaction that has failed is rolled back
				return nil
			}
			return tx.Rollback(ctx)
		})
	}
	return a
}
