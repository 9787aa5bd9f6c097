package fence_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// waiting starts f and returns when it waits for a lock.
func waiting(t *testing.T, d *pgtest.Database, f func() error) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	d.WaitFor(t, pgtest.Waiting)
	return done
}

// Whoever writes with token 9 is ahead and has not committed. Every verb of token 7 waits, and then finds what was left: the
// stale answer names 9, or the snapshot was too old to tell.
func TestWriterThatWaitedComparesWithWhatItWaitedFor(t *testing.T) {
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	afterRollback := map[string]error{"Insert": fence.ErrRowExists}
	for _, level := range levels {
		for _, ahead := range []string{"Update", "Upsert", "Delete"} {
			for late, write := range verbs {
				for _, end := range []string{"commit", "rollback"} {
					t.Run(fmt.Sprintf("%s/%s before %s/%s", level, ahead, late, end), func(t *testing.T) {
						d.Exec(t, `TRUNCATE invoices; DELETE FROM pglock.fences; INSERT INTO invoices VALUES (1, 'old', 6)`)
						a, b := d.Conn(t), d.Conn(t)
						first := begin(t, a, pgx.ReadCommitted)
						second := begin(t, b, level)
						ctx := bounded(t)
						wantErr(t, ahead, verbs[ahead](ctx, first, grant(9)), nil)
						got := waiting(t, d, func() error { return write(ctx, second, grant(7)) })
						if end == "rollback" {
							if err := first.Rollback(ctx); err != nil {
								t.Fatal(err)
							}
							wantErr(t, late, <-got, afterRollback[late])
							commit(t, second)
							return
						}
						commit(t, first)
						err := <-got
						if level == pgx.ReadCommitted {
							wantStale(t, late, err, 9)
							commit(t, second) // still usable
						} else if sqlState(err) != "40001" {
							t.Errorf("%s = %v, want 40001", late, err)
						}
						if row, buried := state(t, d), tombstones(t, d); row == "none" && buried != "9" || row != "none" && buried != "" {
							t.Errorf("the row is %q beside the tombstone %q", row, buried)
						}
					})
				}
			}
		}
	}
}

// A snapshot from before the delete shows the row, and no tombstone.
func TestOldSnapshotNeverBringsARowBack(t *testing.T) {
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	for _, level := range levels {
		for late, write := range verbs {
			t.Run(fmt.Sprintf("%s/%s", level, late), func(t *testing.T) {
				d.Exec(t, `TRUNCATE invoices; DELETE FROM pglock.fences; INSERT INTO invoices VALUES (1, 'old', 6)`)
				tx := begin(t, d.Conn(t), level)
				exec(t, tx, `SELECT FROM invoices`)
				wantErr(t, "delete", invoices.Delete(bounded(t), d.Conn(t), grant(9), key(1)), nil)
				err := write(bounded(t), tx, grant(7))
				if level == pgx.ReadCommitted {
					wantStale(t, late, err, 9)
				} else if sqlState(err) != "40001" {
					t.Errorf("%s = %v, want 40001", late, err)
				}
			})
		}
	}
}

// The same where the row came and went after the snapshot: it shows nothing at all.
func TestOldSnapshotWithoutTheRowNeverBringsItBack(t *testing.T) {
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	for _, level := range levels {
		for _, late := range []string{"Insert", "Upsert"} {
			t.Run(fmt.Sprintf("%s/%s", level, late), func(t *testing.T) {
				d.Exec(t, `TRUNCATE invoices; DELETE FROM pglock.fences`)
				tx := begin(t, d.Conn(t), level)
				db := d.Conn(t)
				wantErr(t, "insert", invoices.Insert(bounded(t), db, grant(8), invoice(1, "x")), nil)
				wantErr(t, "delete", invoices.Delete(bounded(t), db, grant(9), key(1)), nil)
				err := verbs[late](bounded(t), tx, grant(7))
				if level == pgx.ReadCommitted {
					wantStale(t, late, err, 9)
				} else if sqlState(err) != "40001" {
					t.Errorf("%s = %v, want 40001", late, err)
				}
			})
		}
	}
}

// An insert under way holds the key: the second one waits, finds the row, which its first snapshot does not show, and says so.
func TestInsertWaitsForInsert(t *testing.T) {
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	for _, level := range levels {
		for _, late := range []string{"Insert", "Upsert"} {
			for _, buried := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/%v", level, late, buried), func(t *testing.T) {
					d.Exec(t, `TRUNCATE invoices; DELETE FROM pglock.fences`)
					if buried {
						d.Exec(t, `SELECT pglock.fence_row_bury('invoices', ROW(1), 'billing', 0, 6)`)
					}
					ctx := bounded(t)
					first, second := begin(t, d.Conn(t), pgx.ReadCommitted), begin(t, d.Conn(t), level)
					wantErr(t, "insert", invoices.Insert(ctx, first, grant(8), invoice(1, "first")), nil)
					got := waiting(t, d, func() error { return verbs[late](ctx, second, grant(7)) })
					commit(t, first)
					err := <-got
					if level == pgx.ReadCommitted {
						wantStale(t, late, err, 8)
					} else if sqlState(err) != "40001" {
						t.Errorf("%s = %v, want 40001", late, err)
					}
				})
			}
		}
	}
}

// What an insert cleared away is back when it is rolled back, to a savepoint too.
func TestRolledBackInsertLeavesTheTombstone(t *testing.T) {
	d := pgtest.DB(t)
	d.Exec(t, createInvoices+`; SELECT pglock.fence_row_bury('invoices', ROW(1), 'billing', 0, 7)`)
	ctx := bounded(t)
	tx := begin(t, d.Conn(t), pgx.ReadCommitted)
	point, err := tx.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, "insert", invoices.Insert(ctx, point, grant(8), invoice(1, "x")), nil)
	db := d.Conn(t)
	got := waiting(t, d, func() error { return invoices.Insert(ctx, db, grant(6), invoice(1, "late")) })
	if err := point.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	wantStale(t, "late insert", <-got, 7)
	commit(t, tx)
	if got := state(t, d) + tombstones(t, d); got != "none7" {
		t.Errorf("%q, want the tombstone", got)
	}
}

// A delete that runs while the row is being inserted comes before it: there is no row, and it leaves nothing behind.
func TestDeleteBeforeAnInsertIsCommittedFindsNoRow(t *testing.T) {
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	ctx := bounded(t)
	tx := begin(t, d.Conn(t), pgx.ReadCommitted)
	wantErr(t, "insert", invoices.Insert(ctx, tx, grant(5), invoice(1, "x")), nil)
	wantErr(t, "delete", invoices.Delete(ctx, d.Conn(t), grant(7), key(1)), fence.ErrNoRow)
	commit(t, tx)
	if got := state(t, d) + tombstones(t, d); got != "x 5" {
		t.Errorf("%q, want the row", got)
	}
}

// A row that plain SQL replaces is another row to PostgreSQL: whoever waited for the old one must look again.
func TestRowThatWasReplacedMeanwhile(t *testing.T) {
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	for _, late := range []string{"Update", "Delete"} {
		for _, token := range []fence.Token{7, 9} {
			t.Run(fmt.Sprint(late, token), func(t *testing.T) {
				d.Exec(t, `TRUNCATE invoices; INSERT INTO invoices VALUES (1, 'old', 5)`)
				tx := begin(t, d.Conn(t), pgx.ReadCommitted)
				exec(t, tx, `DELETE FROM invoices`)
				exec(t, tx, `INSERT INTO invoices VALUES (1, 'new', 8)`)
				db := d.Conn(t)
				ctx := bounded(t)
				got := waiting(t, d, func() error { return verbs[late](ctx, db, grant(token)) })
				commit(t, tx)
				if token == 7 {
					wantStale(t, late, <-got, 8)
				} else {
					wantErr(t, late, <-got, nil)
				}
			})
		}
	}
}

// Upsert and delete of one key lock in one order, whoever holds the row.
func TestUpsertAndDeleteDoNotDeadlock(t *testing.T) {
	d := pgtest.DB(t)
	d.Exec(t, createInvoices+`; INSERT INTO invoices VALUES (1, 'old', 5)`)
	tx := begin(t, d.Conn(t), pgx.ReadCommitted)
	exec(t, tx, `SELECT FROM invoices FOR UPDATE`)
	ctx := bounded(t)
	a, b := d.Conn(t), d.Conn(t)
	upserted := waiting(t, d, func() error { return verbs["Upsert"](ctx, a, grant(7)) })
	deleted := make(chan error, 1)
	go func() { deleted <- verbs["Delete"](ctx, b, grant(9)) }()
	d.WaitFor(t, `SELECT count(*) = 2 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
	commit(t, tx)
	wantErr(t, "upsert", <-upserted, nil)
	wantErr(t, "delete", <-deleted, nil)
	if got := state(t, d) + tombstones(t, d); got != "none9" {
		t.Errorf("%q, want it deleted", got)
	}
}

// Many writers with random tokens and verbs, at every isolation level: the tokens that were let in never go down.
func TestTokensNeverGoDown(t *testing.T) {
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
				g := grant(fence.Token(1 + n + r.IntN(20)))
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
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM log`); n < 20 {
		t.Errorf("only %d writes got in: the test tests nothing", n)
	}
}
