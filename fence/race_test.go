package fence_test

import (
	"fmt"
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
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	a, b, setup := d.Conn(t), d.Conn(t), d.Conn(t)
	for _, level := range levels {
		for _, ahead := range []string{"Update", "Upsert", "Delete"} {
			for late, write := range verbs {
				for _, end := range []string{"commit", "rollback"} {
					if end == "rollback" && level == pgx.Serializable {
						continue // nothing there that repeatable read has not
					}
					t.Run(fmt.Sprintf("%s/%s before %s/%s", level, ahead, late, end), func(t *testing.T) {
						exec(t, setup, `TRUNCATE invoices; DELETE FROM pglock.fences; INSERT INTO invoices VALUES (1, 'old', 6)`)
						first, second := begin(t, a, pgx.ReadCommitted), begin(t, b, level)
						ctx := bounded(t)
						wantErr(t, ahead, verbs[ahead](ctx, first, grant(9)), nil)
						got := waiting(t, d, func() error { return write(ctx, second, grant(7)) })
						if end == "rollback" {
							rollback(t, first)
							want := error(nil)
							if late == "Insert" {
								want = fence.ErrRowExists
							}
							wantErr(t, late, <-got, want)
							commit(t, second)
							return
						}
						commit(t, first)
						err := <-got
						if level == pgx.ReadCommitted {
							wantStale(t, late, err, 9)
							commit(t, second) // still usable
							return
						}
						if sqlState(err) != "40001" {
							t.Errorf("%s = %v, want 40001", late, err)
						}
						rollback(t, second)
					})
				}
			}
		}
	}
}

// A snapshot from before the delete shows the row, and no tombstone.
func TestOldSnapshotNeverBringsARowBack(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	a, setup := d.Conn(t), d.Conn(t)
	for _, level := range levels {
		for late, write := range verbs {
			t.Run(fmt.Sprintf("%s/%s", level, late), func(t *testing.T) {
				exec(t, setup, `TRUNCATE invoices; DELETE FROM pglock.fences; INSERT INTO invoices VALUES (1, 'old', 6)`)
				tx := begin(t, a, level)
				defer rollback(t, tx)
				wantErr(t, "delete", invoices.Delete(bounded(t), setup, grant(9), key(1)), nil)
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
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	a, setup := d.Conn(t), d.Conn(t)
	for _, level := range levels {
		for _, late := range []string{"Insert", "Upsert"} {
			t.Run(fmt.Sprintf("%s/%s", level, late), func(t *testing.T) {
				exec(t, setup, `TRUNCATE invoices; DELETE FROM pglock.fences`)
				tx := begin(t, a, level)
				defer rollback(t, tx)
				wantErr(t, "insert", invoices.Insert(bounded(t), setup, grant(8), invoice(1, "x")), nil)
				wantErr(t, "delete", invoices.Delete(bounded(t), setup, grant(9), key(1)), nil)
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

// A row that comes and goes in one transaction leaves no row to wait for, only the tombstone: of an earlier delete, which the late
// one has seen, or of its own.
func TestARowThatCameAndWentIsNotBroughtBack(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	a, b, setup := d.Conn(t), d.Conn(t), d.Conn(t)
	for _, level := range levels {
		for _, late := range []string{"Insert", "Upsert"} {
			for _, buried := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/%v", level, late, buried), func(t *testing.T) {
					exec(t, setup, `TRUNCATE invoices; DELETE FROM pglock.fences`)
					if buried {
						exec(t, setup, `SELECT pglock.fence_row_bury('invoices', ROW(1), 'billing', 0, 6)`)
					}
					ctx := bounded(t)
					first, second := begin(t, a, pgx.ReadCommitted), begin(t, b, level)
					defer rollback(t, second)
					wantErr(t, "insert", invoices.Insert(ctx, first, grant(9), invoice(1, "first")), nil)
					wantErr(t, "delete", invoices.Delete(ctx, first, grant(9), key(1), fence.Again()), nil)
					got := waiting(t, d, func() error { return verbs[late](ctx, second, grant(7)) })
					commit(t, first)
					err := <-got
					if level == pgx.ReadCommitted {
						wantStale(t, late, err, 9)
					} else if sqlState(err) != "40001" {
						t.Errorf("%s = %v, want 40001", late, err)
					}
				})
			}
		}
	}
}

// An insert under way holds the key: the second one waits, finds the row, which its first snapshot does not show, and says so.
func TestInsertWaitsForInsert(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	a, b, setup := d.Conn(t), d.Conn(t), d.Conn(t)
	for _, level := range levels {
		for _, late := range []string{"Insert", "Upsert"} {
			for _, buried := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/%v", level, late, buried), func(t *testing.T) {
					exec(t, setup, `TRUNCATE invoices; DELETE FROM pglock.fences`)
					if buried {
						exec(t, setup, `SELECT pglock.fence_row_bury('invoices', ROW(1), 'billing', 0, 6)`)
					}
					ctx := bounded(t)
					first, second := begin(t, a, pgx.ReadCommitted), begin(t, b, level)
					defer rollback(t, second)
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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

// Upsert and delete of one key lock in one order, whoever comes first to a row that somebody holds.
func TestUpsertAndDeleteDoNotDeadlock(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	a, b, x := d.Conn(t), d.Conn(t), d.Conn(t)
	for _, order := range [][2]string{{"Upsert", "Delete"}, {"Delete", "Upsert"}} {
		exec(t, x, `TRUNCATE invoices; DELETE FROM pglock.fences; INSERT INTO invoices VALUES (1, 'old', 5)`)
		tx := begin(t, x, pgx.ReadCommitted)
		exec(t, tx, `SELECT FROM invoices FOR UPDATE`)
		ctx := bounded(t)
		first := waiting(t, d, func() error { return verbs[order[0]](ctx, a, grant(7)) })
		second := make(chan error, 1)
		go func() { second <- verbs[order[1]](ctx, b, grant(9)) }()
		d.WaitFor(t, `SELECT count(*) = 2 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
		commit(t, tx)
		wantErr(t, order[0], <-first, nil)
		wantErr(t, order[1], <-second, nil)
	}
}

// Nobody but the owner of the data lowers a token. Whoever waited for that is not stale any more, nor kept by a trigger.
func TestUpdateThatWaitedUntilItsTokenSufficesIsWritten(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices+`; INSERT INTO invoices VALUES (1, 'old', 9)`)
	a, b := d.Conn(t), d.Conn(t)
	tx := begin(t, a, pgx.ReadCommitted)
	exec(t, tx, `UPDATE invoices SET fencing_token = 0`)
	ctx := bounded(t)
	got := waiting(t, d, func() error { return verbs["Update"](ctx, b, grant(7)) })
	commit(t, tx)
	wantErr(t, "Update", <-got, nil)
}
