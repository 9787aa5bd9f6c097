package fence_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// stated begins a transaction at a level, takes its snapshot, and states a grant.
func stated(t *testing.T, conn *pgx.Conn, level pgx.TxIsoLevel, token fence.Token) pgx.Tx {
	t.Helper()
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	exec(t, tx, `SELECT count(*) FROM plain`)
	wantErr(t, "State", fence.State(t.Context(), tx, grant(token)), nil)
	return tx
}

// Two transactions write different rows of one table, or of one key. The second waits for the first, and then compares with
// what it left: at read committed it passes or is stale; an older snapshot never decides.
func TestProtectedWriteWaitsForAnotherGrant(t *testing.T) {
	t.Parallel()
	for how := range waysToProtect {
		d := protected(t, how)
		d.Exec(t, `BEGIN; SELECT pglock.fence_state('billing', 0, 7); INSERT INTO plain VALUES (2, 1); COMMIT`)
		a, b := d.Conn(t), d.Conn(t)
		token := fence.Token(10)
		for _, level := range levels {
			for _, c := range []struct {
				name          string
				first, second fence.Token // beyond the one that has written last
				end           func(*testing.T, pgx.Tx)
				want          error // at read committed
				serial        bool  // it is 40001 elsewhere
			}{
				{"later waits for earlier", 1, 2, commit, nil, true},
				{"later waits for earlier that gives up", 1, 2, rollback, nil, false},
				{"earlier waits for later", 2, 1, commit, fence.ErrStale, true},
				{"earlier waits for later that gives up", 2, 1, rollback, nil, false},
			} {
				t.Run(fmt.Sprintf("%s/%s/%s", how, level, c.name), func(t *testing.T) {
					ctx := bounded(t)
					second := stated(t, b, level, token+c.second)
					first := stated(t, a, pgx.ReadCommitted, token+c.first)
					exec(t, first, `UPDATE plain SET note = 'first' WHERE id = 1`)
					got := waiting(t, d, func() error {
						_, err := second.Exec(ctx, `UPDATE plain SET note = 'second' WHERE id = 2`)
						return fence.Explain(err)
					})
					c.end(t, first)
					switch err := <-got; {
					case level != pgx.ReadCommitted && c.serial:
						if sqlState(err) != "40001" {
							t.Errorf("%v, want 40001", err)
						}
					case c.want != nil:
						wantStale(t, "the second", err, token+c.first)
					default:
						wantErr(t, "the second", err, nil)
					}
					rollback(t, second)
				})
				token += 10
			}
		}
	}
}

// The grant at which the fence stands already keeps a later one waiting as well.
func TestProtectedWriteLocksTheFenceThatStands(t *testing.T) {
	t.Parallel()
	for how := range waysToProtect {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			d := protected(t, how)
			ctx := bounded(t)
			a, b := d.Conn(t), d.Conn(t)
			for _, table := range []string{"plain", "parted_1a", "parted_2", "heir"} {
				first, second := stated(t, a, pgx.ReadCommitted, 7), stated(t, b, pgx.ReadCommitted, 8)
				exec(t, first, `UPDATE `+table+` SET note = 'first'`)
				got := waiting(t, d, func() error {
					_, err := second.Exec(ctx, fmt.Sprintf(`INSERT INTO %s VALUES (%d, 1)`, table, map[string]int{"parted_2": 150}[table]+2))
					return err
				})
				rollback(t, first)
				wantErr(t, table, <-got, nil)
				rollback(t, second)
			}
		})
	}
}

// A snapshot from before the fence was raised decides nothing either, with nobody to wait for.
func TestOldSnapshotNeverPassesAProtectedTable(t *testing.T) {
	t.Parallel()
	for how := range waysToProtect {
		d := protected(t, how)
		a, b := d.Conn(t), d.Conn(t)
		token := fence.Token(10)
		for _, level := range levels {
			for _, key := range []int{1, 1000 + int(token)} { // of a fence that was there, and of none
				for _, later := range []fence.Token{1, -1} {
					t.Run(fmt.Sprintf("%s/%s/%d/%d", how, level, key, later), func(t *testing.T) {
						tx := stated(t, b, level, token+later)
						defer rollback(t, tx)
						first := stated(t, a, pgx.ReadCommitted, token)
						exec(t, first, fmt.Sprintf(`INSERT INTO plain VALUES (%d, %d)`, token, key))
						commit(t, first)
						_, err := tx.Exec(t.Context(), fmt.Sprintf(`INSERT INTO plain VALUES (%d, %d)`, token+1, key))
						switch {
						case level != pgx.ReadCommitted:
							if sqlState(err) != "40001" {
								t.Errorf("%v, want 40001", err)
							}
						case later < 0:
							wantStale(t, "the earlier grant", fence.Explain(err), token)
						default:
							wantErr(t, "the later grant", err, nil)
						}
					})
					token += 10
				}
			}
		}
	}
}

// Transactions of one grant run side by side; with a fence for each key, those of two locks as well.
func TestProtectedWritesSideBySide(t *testing.T) {
	t.Parallel()
	for how := range waysToProtect {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			d := protected(t, how)
			ctx := bounded(t)
			a, b := stated(t, d.Conn(t), pgx.ReadCommitted, 7), stated(t, d.Conn(t), pgx.ReadCommitted, 7)
			for i, tx := range []pgx.Tx{a, b} {
				if _, err := tx.Exec(ctx, fmt.Sprintf(`INSERT INTO plain VALUES (%d, 1)`, 10+i)); err != nil {
					t.Error(err)
				}
			}
			commit(t, a)
			commit(t, b)
			if how == "table" {
				return
			}
			locks := []fence.Grant{{Lock: "customer 2", Token: 5}, {Lock: "customer 3", Token: 4}}
			var open []pgx.Tx
			for i, g := range locks {
				tx := begun(t, d.Conn(t), ``)
				wantErr(t, "State", fence.State(ctx, tx, g), nil)
				if _, err := tx.Exec(ctx, fmt.Sprintf(`INSERT INTO plain VALUES (%d, %d)`, 20+i, 2+i)); err != nil {
					t.Error(err)
				}
				open = append(open, tx)
			}
			for _, tx := range open {
				commit(t, tx)
			}
		})
	}
}

// The one that holds the fence through fence.Tx writes protected tables without another word; the one that is late is refused
// by the table too, through a resource that nobody else uses, and its grant is told once.
func TestTransactionsOfOursStateTheirGrant(t *testing.T) {
	t.Parallel()
	d := protected(t, "table")
	conn := d.Conn(t)
	d.Exec(t, `INSERT INTO pglock.leases (name, token, expires_at) VALUES ('billing', 20, clock_timestamp() + interval '1 hour')`)
	ctx := bounded(t)
	update := func(tx pgx.Tx) error { _, err := tx.Exec(ctx, `UPDATE plain SET note = 'x'`); return err }
	inHeld := func(g fence.Grant) error {
		return fence.HeldTx(ctx, conn, g, func(_ context.Context, tx pgx.Tx) error { return update(tx) })
	}
	wantErr(t, "Tx", fence.Tx(ctx, conn, grant(8), "report", update), nil)
	told := 0
	late := grant(7).OnStale(func(error) { told++ })
	wantStale(t, "late Tx", fence.Tx(ctx, conn, late, "another", update), 8)
	if told != 1 {
		t.Errorf("OnStale was called %d times", told)
	}
	wantErr(t, "HeldTx", inHeld(grant(20)), nil)
	d.Exec(t, `UPDATE pglock.leases SET token = 30; BEGIN; SELECT pglock.fence_state('billing', 0, 30); UPDATE plain SET note = ''; COMMIT;
		UPDATE pglock.leases SET token = 21`) // as if its memory were lost
	told = 0
	held := grant(21).OnStale(func(error) { told++ })
	err := inHeld(held)
	wantStale(t, "late HeldTx", err, 30)
	if told != 1 {
		t.Errorf("OnStale was called %d times", told)
	}
	told = 0
	d.Exec(t, `UPDATE pglock.leases SET token = 30`)
	wantErr(t, "StatedTx", fence.StatedTx(ctx, conn, grant(30), update), nil)
	wantStale(t, "late StatedTx", fence.StatedTx(ctx, conn, late, update), 30)
	wantStale(t, "late StatedTx on a pool", fence.StatedTx(ctx, d.Pool(t), late, update), 30)
	if told != 2 {
		t.Errorf("OnStale was called %d times", told)
	}
	std := openSQL(t, d.URL)
	updateSQL := func(tx *sql.Tx) error { _, err := tx.ExecContext(ctx, `UPDATE plain SET note = 'y'`); return err }
	wantErr(t, "StatedTxSQL", fence.StatedTxSQL(ctx, std, grant(30), updateSQL), nil)
	wantStale(t, "late StatedTxSQL", fence.StatedTxSQL(ctx, std, grant(29), updateSQL), 30)
	wantErr(t, "nothing to run", fence.StatedTx(ctx, conn, grant(30), nil), fence.ErrInvalid)
	wantErr(t, "StatedTx of what was never granted", fence.StatedTx(ctx, d.Pool(t), grant(1<<50), update), fence.ErrNeverGranted)
	// One that a caller has explained already is told once as well.
	told = 0
	wantStale(t, "explained", fence.Tx(ctx, conn, late, "third", func(tx pgx.Tx) error { return late.Stale(fence.Explain(update(tx))) }), 30)
	if told != 1 {
		t.Errorf("OnStale was called %d times", told)
	}
}

// Behind a pooler in transaction mode many callers share few sessions: none writes under another's grant.
func TestProtectedBehindPgBouncer(t *testing.T) {
	t.Parallel()
	d := protected(t, "rows")
	pool, err := pgxpool.New(t.Context(), pgtest.PgBouncer(t, d))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	ctx := bounded(t)
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			for n := range 8 {
				g := fence.Grant{Lock: fmt.Sprintf("customer %d", 10+i), Token: fence.Token(n + 1)}
				err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					if err := fence.State(ctx, tx, g); err != nil {
						return err
					}
					_, err := tx.Exec(ctx, `INSERT INTO plain VALUES ($1, $2)`, pgx.QueryExecModeExec, 100*i+1000+n, 10+i)
					return err
				})
				wantErr(t, "stated", err, nil)
				_, err = pool.Exec(ctx, `UPDATE plain SET note = 'x' WHERE customer = $1`, pgx.QueryExecModeExec, 10+i)
				wantErr(t, "not stated", fence.Explain(err), fence.ErrNotStated)
			}
		})
	}
	wg.Wait()
}
