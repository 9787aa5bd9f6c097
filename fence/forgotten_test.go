package fence_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// A fence that is forgotten: made by one grant, and met by the write of another.
var forgettable = map[string]struct {
	setup string
	made  func(ctx context.Context, conn *pgx.Conn, g fence.Grant) error
	write func(ctx context.Context, tx pgx.Tx, g fence.Grant) error
}{
	"tombstone, insert": {made: insertAndDelete, write: func(ctx context.Context, tx pgx.Tx, g fence.Grant) error {
		return invoices.Insert(ctx, tx, g, invoice(1, "late"))
	}},
	"tombstone, upsert": {made: insertAndDelete, write: func(ctx context.Context, tx pgx.Tx, g fence.Grant) error {
		return invoices.Upsert(ctx, tx, g, invoice(1, "late"))
	}},
	"tombstone, upsert of several": {made: insertAndDelete, write: func(ctx context.Context, tx pgx.Tx, g fence.Grant) error {
		return invoices.UpsertRows(ctx, tx, g, invoicesWith([]int{2, 1}, "late"))
	}},
	"tombstone, rekey": {
		setup: `INSERT INTO invoices VALUES (3, 'other', 1)`,
		made:  insertAndDelete,
		write: func(ctx context.Context, tx pgx.Tx, g fence.Grant) error {
			return invoices.Rekey(ctx, tx, g, key(3), key(1))
		},
	},
	"resource": {
		made: func(ctx context.Context, conn *pgx.Conn, g fence.Grant) error {
			return fence.Tx(ctx, conn, g, "report", nothing)
		},
		write: func(ctx context.Context, tx pgx.Tx, g fence.Grant) error { return fence.Raise(ctx, tx, g, "report") },
	},
	"protected row": {
		setup: `INSERT INTO invoices VALUES (1, 'old', 0); SELECT pglock.protect('invoices', 'id')`,
		made: func(ctx context.Context, conn *pgx.Conn, g fence.Grant) error {
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return statedly(ctx, tx, g) })
		},
		write: statedly,
	},
}

func insertAndDelete(ctx context.Context, conn *pgx.Conn, g fence.Grant) error {
	if err := invoices.Insert(ctx, conn, g, invoice(1, "x")); err != nil {
		return err
	}
	return invoices.Delete(ctx, conn, g, key(1), fence.Again())
}

// What a forgotten fence kept out stays out, at every isolation level, and whoever holds a lock goes on. An old snapshot, in which
// there is neither the fence nor that it was forgotten, decides nothing.
func TestWhatAForgottenFenceKeptOutStaysOut(t *testing.T) {
	t.Parallel()
	for name, tt := range forgettable {
		for _, level := range levels {
			for _, old := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/%v", name, level, old), func(t *testing.T) {
					t.Parallel()
					d := pgtest.DB(t)
					d.Exec(t, createInvoices+`; `+tt.setup)
					aLease(t, d, 50)
					conn, late := d.Conn(t), d.Conn(t)
					ctx := bounded(t)
					var tx pgx.Tx
					if old {
						tx = begin(t, late, level)
					}
					wantErr(t, "made", tt.made(ctx, conn, grant(9)), nil)
					forget(t, d, 1)
					if !old {
						tx = begin(t, late, level)
					}

					err := tt.write(ctx, tx, grant(7))

					if old && level != pgx.ReadCommitted {
						if sqlState(err) != "40001" {
							t.Errorf("the earlier write of an old snapshot: %v, want 40001", err)
						}
					} else {
						wantStale(t, "the earlier write", err, 10) // the first that is let in
					}
					rollback(t, tx)
					tx = begin(t, late, level)
					wantErr(t, "a later write", tt.write(ctx, tx, grant(10)), nil)
					commit(t, tx)
				})
			}
		}
	}
}

// forget makes all fences old enough, and wants so many to be forgotten.
func forget(t *testing.T, d *pgtest.Database, want int) {
	t.Helper()
	d.Exec(t, `UPDATE pglock.fences SET raised_at = raised_at - interval '1 day'`)
	if n := pgtest.Query[int](t, d, `SELECT pglock.prune_fences('1 hour', 1000)`); n != want {
		t.Errorf("%d fences were forgotten, want %d", n, want)
	}
}

// A grant that is live passes wherever it would have passed before, however early it was: nothing is forgotten that it does not exceed.
func TestNoFenceIsForgottenThatALiveGrantDoesNotExceed(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	conn := d.Conn(t)
	ctx := bounded(t)
	live := held(t, d)
	earlier, later := live, live
	earlier.Token--
	later.Token += 5
	d.Exec(t, `INSERT INTO pglock.leases (name, token) VALUES ('other', $1)`, int64(later.Token))
	earlier.Lock, later.Lock = "other", "other"
	wantErr(t, "earlier", fence.Tx(ctx, conn, earlier, "earlier", nothing), nil)
	wantErr(t, "its own", fence.Tx(ctx, conn, live, "its own", nothing), nil)
	wantErr(t, "later", fence.Tx(ctx, conn, later, "later", nothing), nil)

	forget(t, d, 1)

	if got := pgtest.Query[string](t, d, `SELECT string_agg(resource, ', ' ORDER BY resource) FROM pglock.fences WHERE resource <> ''`); got != "its own, later" {
		t.Errorf("left: %s", got)
	}
	wantErr(t, "a new resource under the live grant", fence.Tx(ctx, conn, live, "new", nothing), nil)
	wantErr(t, "a new row under the live grant", invoices.Insert(ctx, conn, live, invoice(1, "x")), nil)
	wantStale(t, "a new row under what was forgotten", invoices.Insert(ctx, conn, earlier, invoice(2, "x")), live.Token)
	earlier.Token--
	wantStale(t, "a new row under a grant before that", invoices.Insert(ctx, conn, earlier, invoice(2, "x")), live.Token)
}

// A fence may come and be forgotten between a writer's look, which finds none, and its own mark there: so it looks for what was
// forgotten after that.
func TestAFenceThatCameAndWasForgottenWithinOneWriteKeepsOut(t *testing.T) {
	t.Parallel()
	for name, tt := range forgettable {
		if name == "protected row" {
			continue // whoever writes the row has locked it before
		}
		for _, level := range levels {
			t.Run(fmt.Sprintf("%s/%s", name, level), func(t *testing.T) {
				t.Parallel()
				d := pgtest.DB(t)
				d.Exec(t, createInvoices+`; `+tt.setup+`; CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
						IF current_setting('test.stalls', true) = 'yes' THEN PERFORM pg_advisory_xact_lock(1); END IF;
						RETURN NEW; END $$;
					CREATE TRIGGER stall BEFORE INSERT ON pglock.fences FOR EACH ROW EXECUTE FUNCTION stall()`)
				conn, late, gate := d.Conn(t), d.Conn(t), d.Conn(t)
				ctx := bounded(t)
				exec(t, gate, `SELECT pg_advisory_lock(1)`)
				exec(t, late, `SET test.stalls = 'yes'`)
				tx := begin(t, late, level)
				got := waiting(t, d, func() error { return tt.write(ctx, tx, grant(7)) })
				wantErr(t, "made", tt.made(ctx, conn, grant(9)), nil)
				forget(t, d, 1)
				exec(t, gate, `SELECT pg_advisory_unlock(1)`)
				if err := <-got; level == pgx.ReadCommitted {
					wantStale(t, "the earlier write", err, 10)
				} else if sqlState(err) != "40001" {
					t.Errorf("the earlier write of an old snapshot: %v, want 40001", err)
				}
				rollback(t, tx)
			})
		}
	}
}

// A lease whose renewal is on its way lives, though what can be seen of it has run out.
func TestALeaseThatIsBeingRenewedIsLiveToAPrune(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	conn := d.Conn(t)
	ctx := bounded(t)
	live := held(t, d)
	later := fence.Grant{Lock: "other", Token: live.Token + 1}
	d.Exec(t, `SELECT setval('pglock.fencing_token', $1::bigint + 10)`, int64(live.Token))
	wantErr(t, "a fence of a later token", fence.Tx(ctx, conn, later, "later", nothing), nil)
	d.Exec(t, `UPDATE pglock.leases SET expires_at = clock_timestamp() + interval '2 s'`)
	renewal := begin(t, conn, pgx.ReadCommitted)
	exec(t, renewal, `DO $$ BEGIN
		ASSERT (SELECT r.status = 'renewed' FROM pglock.leases l, pglock.renew(ARRAY[l.name], ARRAY[l.acquisition], ARRAY[l.token]) r); END $$`)
	d.WaitFor(t, `SELECT expires_at <= clock_timestamp() FROM pglock.leases`)

	forget(t, d, 0)
	commit(t, renewal)

	wantErr(t, "a new resource under the lease that was renewed", fence.Tx(ctx, conn, live, "new", nothing), nil)
}

// A fence may have a token that nobody has drawn: of a lock that lives elsewhere, or made up by a role that may take locks. To forget
// it would refuse the grants that are still to come.
func TestATokenThatIsNotDrawnYetIsNotForgotten(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	conn := d.Conn(t)
	ctx := bounded(t)
	const last = `SELECT last_value FROM pglock.fencing_token`
	ahead := grant(pgtest.Query[fence.Token](t, d, last))
	wantErr(t, "a fence of the latest token", fence.Tx(ctx, conn, ahead, "latest", nothing), nil)
	ahead.Token += 1000
	wantErr(t, "a fence of a token to come", fence.Tx(ctx, conn, ahead, "ahead", nothing), nil)
	wantErr(t, "a tombstone of a token to come", insertAndDelete(ctx, conn, ahead), nil)

	forget(t, d, 0)

	next := held(t, d)
	wantErr(t, "a new resource under the next grant", fence.Tx(ctx, conn, next, "new", nothing), nil)
	wantErr(t, "a new row under the next grant", invoices.Insert(ctx, conn, next, invoice(2, "x")), nil)
	forget(t, d, 1) // "latest"
	wantErr(t, "another one", fence.Tx(ctx, conn, next, "another", nothing), nil)
}

// What a grant has deleted it does not insert again, unless it says so: a copy of its insert that was under way for long stays out,
// whether the tombstone is remembered or not.
func TestAReplayStaysOutAfterItsTombstoneWasForgotten(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	conn := d.Conn(t)
	ctx := bounded(t)
	wantErr(t, "made", insertAndDelete(ctx, conn, grant(9)), nil)
	wantErr(t, "the replay", invoices.Insert(ctx, conn, grant(9), invoice(1, "x")), fence.ErrAlreadyWritten)
	forget(t, d, 1)
	wantErr(t, "the replay", invoices.Insert(ctx, conn, grant(9), invoice(1, "x")), fence.ErrStale)
	wantErr(t, "the replay of an upsert", invoices.Upsert(ctx, conn, grant(9), invoice(1, "x")), fence.ErrStale)
	wantErr(t, "a later grant", invoices.Insert(ctx, conn, grant(10), invoice(1, "x")), nil)
}

// A lock service that has lost its memory is told apart from a lock that has moved on, also where the fence that knew was forgotten.
func TestALockServiceThatIsBehindWhatWasForgotten(t *testing.T) {
	t.Parallel()
	for name, tt := range forgettable {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			d.Exec(t, createInvoices+`; `+tt.setup)
			aLease(t, d, 50)
			conn := d.Conn(t)
			ctx := bounded(t)
			wantErr(t, "made", tt.made(ctx, conn, grant(9)), nil)
			forget(t, d, 1)
			aLease(t, d, 7)
			tx := begin(t, conn, pgx.ReadCommitted)
			wantErr(t, "a grant of the service that is behind", tt.write(ctx, tx, grant(7)), fence.ErrBehind)
			rollback(t, tx)
		})
	}
}

func TestFencesThatStay(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices+`; INSERT INTO invoices VALUES (1, 'old', 0); SELECT pglock.protect('invoices')`)
	conn := d.Conn(t)
	ctx := bounded(t)
	prune := func(idle string) int {
		return pgtest.Query[int](t, d, `SELECT pglock.prune_fences($1::text::interval, 1000)`, idle)
	}
	want := func(what string, got, want int) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %d forgotten, want %d", what, got, want)
		}
	}
	wantErr(t, "Tx", fence.Tx(ctx, conn, grant(9), "table", nothing), nil) // a resource of that name
	d.Exec(t, `UPDATE pglock.fences SET raised_at = raised_at - interval '29 s' WHERE resource <> ''`)
	want("younger than the cap", prune("0"), 0)
	want("younger than the cap", prune("-1 year"), 0)
	d.Exec(t, `UPDATE pglock.fences SET raised_at = raised_at - interval '2 s' WHERE resource <> ''`)
	want("younger than was asked for", prune("1 hour"), 0)

	d.Exec(t, `UPDATE pglock.guard SET no_grants_before = clock_timestamp() + interval '1 min'`)
	want("while new grants are held back", prune("0"), 0)
	d.Exec(t, `UPDATE pglock.guard SET no_grants_before = 'epoch', started = 'epoch'`)
	want("after a restart that nobody has noticed", prune("0"), 0)
	d.Exec(t, `UPDATE pglock.guard SET started = pg_postmaster_start_time()`)

	reader := raised(t, d.Conn(t), pgx.RepeatableRead, grant(9))
	wantErr(t, "a new resource at repeatable read", fence.Raise(ctx, reader, grant(9), "new"), nil)
	want("while an old snapshot makes a fence", prune("0"), 0)
	rollback(t, reader)

	wantErr(t, "a protected table", pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return statedly(ctx, tx, grant(9)) }), nil)
	d.Exec(t, `UPDATE pglock.fences SET raised_at = raised_at - interval '1 day'`)
	want("the resource, and not the fence of the protected table", prune("0"), 1)
	exec(t, conn, `BEGIN ISOLATION LEVEL REPEATABLE READ`)
	if _, err := conn.Exec(ctx, `SELECT pglock.prune_fences('0', 1)`); sqlState(err) != "25000" {
		t.Errorf("at repeatable read: %v, want 25000", err)
	}
}

// Who comes while a tombstone is being forgotten waits, and meets either it or what it was forgotten for.
func TestAWriteBesideAPruneIsRefused(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	conn, pruner, late := d.Conn(t), d.Conn(t), d.Conn(t)
	ctx := bounded(t)
	for last, end := range map[fence.Token]func(*testing.T, pgx.Tx){10: commit, 9: rollback} {
		for _, name := range []string{"tombstone, insert", "tombstone, upsert", "tombstone, upsert of several"} {
			exec(t, conn, `TRUNCATE invoices; UPDATE pglock.fences SET last_token = 0 WHERE resource = ''; DELETE FROM pglock.fences WHERE resource <> ''`)
			wantErr(t, "made", insertAndDelete(ctx, conn, grant(9)), nil)
			exec(t, conn, `UPDATE pglock.fences SET raised_at = raised_at - interval '1 day'`)
			pruning, tx := begin(t, pruner, pgx.ReadCommitted), begin(t, late, pgx.ReadCommitted)
			exec(t, pruning, `SELECT pglock.prune_fences('0', 1000)`)
			got := waiting(t, d, func() error { return forgettable[name].write(ctx, tx, grant(7)) })
			end(t, pruning)
			wantStale(t, name, <-got, last)
			rollback(t, tx)
		}
	}
}
