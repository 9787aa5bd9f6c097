package advisory_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock/advisory"
)

// eachKind runs a test for both kinds of transactions, on one database.
func eachKind(t *testing.T, f func(t *testing.T, d *pgtest.Database, begin func() *tx)) {
	t.Parallel()
	for _, kind := range txKinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.Empty(t)
			f(t, d, func() *tx { return kind.begin(t, d.URL) })
		})
	}
}

// shortly is a wait with a limit.
func shortly(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func TestATransactionHoldsTheLockToItsEnd(t *testing.T) {
	eachKind(t, func(t *testing.T, d *pgtest.Database, begin func() *tx) {
		for _, key := range []advisory.Key{advisory.Name("a"), advisory.Int64(-1), advisory.Int32s(-1, 1)} {
			holder, other := begin(), begin()
			wantErr(t, "TryAcquire", holder.TryAcquire(soon(t), key), nil)
			wantErr(t, "the same again", holder.TryAcquire(soon(t), key), nil)
			wantErr(t, "TryAcquire of another", other.TryAcquire(soon(t), key), advisory.ErrHeld)
			wantErr(t, "TryAcquire of another, shared", other.TryAcquire(soon(t), key, advisory.Shared()), advisory.ErrHeld)
			waiting := async(func() error { return other.Acquire(soon(t), key) })
			holder.rollback()
			wantErr(t, "Acquire", happens(t, "Acquire comes back", waiting), nil)
			other.rollback()
		}
		if n := locks(t, d); n != 0 {
			t.Errorf("%d locks are left", n)
		}
	})
}

func TestTransactionsShareALock(t *testing.T) {
	eachKind(t, func(t *testing.T, _ *pgtest.Database, begin func() *tx) {
		key := advisory.Name("a")
		one, two, three := begin(), begin(), begin()
		wantErr(t, "shared", one.TryAcquire(soon(t), key, advisory.Shared()), nil)
		wantErr(t, "shared by a second", two.TryAcquire(soon(t), key, advisory.Shared()), nil)
		wantErr(t, "exclusive", three.TryAcquire(soon(t), key), advisory.ErrHeld)
		one.rollback()
		two.rollback()
		wantErr(t, "exclusive, when they have ended", three.TryAcquire(soon(t), key), nil)
	})
}

// Case C13, and its kind: whatever is in the way, the caller's transaction does not notice.
func TestATransactionThatIsRefusedGoesOnAsBefore(t *testing.T) {
	eachKind(t, func(t *testing.T, d *pgtest.Database, begin func() *tx) {
		key := advisory.Name("jobs", "a")
		holder := begin()
		wantErr(t, "TryAcquire", holder.TryAcquire(soon(t), key), nil)
		// The roles of hardened installations may see neither.
		hardened := d.Role(t)
		const hide = `REVOKE SELECT ON pg_catalog.pg_locks, pg_catalog.pg_stat_activity FROM PUBLIC`
		d.Exec(t, hide)

		const settings = `SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings`
		caller := begin()
		for _, s := range []string{`CREATE TABLE mine (n int)`, `SET LOCAL lock_timeout = '1234ms'`, `SET LOCAL statement_timeout = '9s'`, `SET ROLE ` + hardened} {
			wantErr(t, s, caller.exec(s), nil)
		}
		before, err := caller.show(settings)
		wantErr(t, "the settings", err, nil)

		ended, cancel := context.WithCancel(context.Background())
		cancel()
		wantErr(t, "TryAcquire", caller.TryAcquire(soon(t), key), advisory.ErrHeld)
		err = caller.Acquire(shortly(t), key)
		wantErr(t, "Acquire", err, advisory.ErrHeld)
		wantErr(t, "Acquire", err, context.DeadlineExceeded)
		wantErr(t, "TryAcquire with a ctx that has ended", caller.TryAcquire(ended, key), context.Canceled)

		after, err := caller.show(settings)
		wantErr(t, "the next statement", err, nil)
		if after != before {
			t.Errorf("the settings of the transaction were\n%s\nand are\n%s", before, after)
		}
		// It commits what it did before.
		wantErr(t, "RESET ROLE", caller.exec(`RESET ROLE`), nil)
		wantErr(t, "INSERT", caller.exec(`INSERT INTO mine VALUES (1)`), nil)
		holder.rollback()
		wantErr(t, "TryAcquire when it is free", caller.TryAcquire(soon(t), key), nil)
	})
}

func TestTheHolderIsNamedToATransaction(t *testing.T) {
	eachKind(t, func(t *testing.T, d *pgtest.Database, begin func() *tx) {
		key := advisory.Name("jobs", "a")
		holder, other := begin(), begin()
		wantErr(t, "TryAcquire", holder.TryAcquire(soon(t), key), nil)
		const relations = `SELECT string_agg(relation::regclass::text, ' ' ORDER BY 1) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation'`
		before, err := other.show(relations)
		wantErr(t, "the relations in use", err, nil)
		for what, err := range map[string]error{"TryAcquire": other.TryAcquire(soon(t), key), "Acquire": other.Acquire(shortly(t), key)} {
			var held *advisory.HeldError
			if !errors.As(err, &held) || len(held.Holders) != 1 || !held.Holders[0].Key.Same(key) || held.Holders[0].PID == 0 {
				t.Errorf("%s = %v, want the holder", what, err)
				continue
			}
			if !strings.Contains(err.Error(), `"jobs" "a"`) || !strings.Contains(err.Error(), key.String()) {
				t.Errorf("%v does not name the key %v", err, key)
			}
		}
		if after, err := other.show(relations); err != nil || after != before {
			t.Errorf("the transaction had locks on %s, and has on %s (%v)", before, after, err)
		}
	})
}

// A savepoint that is rolled back takes the locks that came after it along.
func TestARollbackToASavepointGivesTheLockBack(t *testing.T) {
	eachKind(t, func(t *testing.T, _ *pgtest.Database, begin func() *tx) {
		key := advisory.Name("a")
		holder, other := begin(), begin()
		wantErr(t, "SAVEPOINT", holder.exec(`SAVEPOINT s`), nil)
		wantErr(t, "TryAcquire", holder.TryAcquire(soon(t), key), nil)
		wantErr(t, "ROLLBACK TO", holder.exec(`ROLLBACK TO s`), nil)
		wantErr(t, "TryAcquire of another", other.TryAcquire(soon(t), key), nil)
	})
}

// Case C4, and cancellation: whoever is told that the lock was not granted does not hold it, and its connection
// lives. 12,000 rounds under PGLOCK_LONG=1.
func TestAFailedWaitOfATransactionLeavesNoLock(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	key := advisory.Name("a")
	const workers = 6
	each := pgtest.Rounds(160, 12_000) / workers
	ctx := long(t)
	tally := make(chan [2]int, workers)
	conns := make([]*pgx.Conn, workers) // all before any begins, or the first would be done when the last one comes
	for w := range conns {
		conns[w] = d.Conn(t)
	}
	for w, conn := range conns {
		go func() {
			got, failed := 0, 0
			defer func() { tally <- [2]int{got, failed} }()
			for i := range each {
				tx, err := conn.Begin(ctx)
				if err != nil {
					t.Errorf("begin: %v", err)
					return
				}
				limit, cancel := context.WithTimeout(ctx, time.Duration(1+(w+i)%5)*time.Millisecond)
				switch {
				case i == 0: // one is granted for certain, and one is not
					cancel()
					limit, cancel = context.WithCancel(ctx)
				case i == 1:
					cancel()
				case i%3 == 0: // by hand, and not by a deadline that a driver can see coming
					cancel()
					limit, cancel = context.WithCancel(ctx)
					time.AfterFunc(time.Duration(1+(w+i)%5)*time.Millisecond, cancel)
				}
				err = advisory.InTx(tx).Acquire(limit, key)
				cancel()
				if err == nil { // it is held for a while, or there would be nobody to wait
					_, err = tx.Exec(ctx, `SELECT pg_sleep(0.002)`)
				}
				var mine int
				if e := tx.QueryRow(ctx, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()`).Scan(&mine); e != nil {
					t.Errorf("the transaction does not go on after %v: %v", err, e)
					return
				}
				switch {
				case err == nil && mine == 1:
					got++
				case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
					failed++
					fallthrough
				default:
					if mine != 0 || err == nil {
						t.Errorf("Acquire = %v, and it holds %d locks", err, mine)
					}
				}
				if err := tx.Rollback(ctx); err != nil {
					t.Errorf("rollback: %v", err)
				}
			}
		}()
	}
	var got, failed int
	for range workers {
		n := <-tally
		got, failed = got+n[0], failed+n[1]
	}
	if got == 0 || failed == 0 {
		t.Errorf("%d granted, %d failed: nothing was tested", got, failed)
	}
	if n := locks(t, d); n != 0 {
		t.Errorf("%d locks are left", n)
	}
	t.Logf("%d granted, %d failed", got, failed)
}

// Case C24: a full lock table is told, with advice, and the rollback frees all of it.
func TestAFullLockTableIsExplained(t *testing.T) {
	t.Parallel()
	_, d := pgtest.OwnServer(t, pgtemp.Options{Settings: map[string]string{"max_locks_per_transaction": "10", "max_connections": "12"}})
	conn := d.Conn(t)
	tx, err := conn.Begin(long(t))
	if err != nil {
		t.Fatal(err)
	}
	// First many at a time, until the next many do not fit.
	n := int64(0)
	for ; n < 20_000 && err == nil; n += 500 {
		err = pgx.BeginFunc(long(t), tx, func(some pgx.Tx) error { // a savepoint
			_, err := some.Exec(long(t), `SELECT count(pg_try_advisory_xact_lock(i)) FROM generate_series($1::bigint, $1 + 499) i`, n)
			return err
		})
	}
	var last advisory.Key
	for err = nil; n < 25_000 && err == nil; n++ {
		last = advisory.Int64(n)
		err = advisory.InTx(tx).TryAcquire(long(t), last)
	}
	if err == nil {
		t.Fatal("it never gets full")
	}
	if state(err) != "53200" || !strings.Contains(err.Error(), last.String()) || !strings.Contains(err.Error(), "max_locks_per_transaction") {
		t.Errorf("with a full lock table TryAcquire = %v", err)
	}
	wantErr(t, "rollback", tx.Rollback(soon(t)), nil)
	if n := locks(t, d); n != 0 {
		t.Errorf("%d locks are left", n)
	}
	wantErr(t, "the connection afterwards", pgx.BeginFunc(soon(t), conn, func(tx pgx.Tx) error {
		return advisory.InTx(tx).TryAcquire(soon(t), last)
	}), nil)
}

// Case C18: every string that is a name is a lock of its own. (One that is not is refused: see the tests of keys.)
func TestEveryNameIsALockOfItsOwn(t *testing.T) {
	eachKind(t, func(t *testing.T, d *pgtest.Database, begin func() *tx) {
		holder, other := begin(), begin()
		for _, g := range golden {
			key := advisory.Name(g.parts...)
			wantErr(t, "TryAcquire of "+key.String(), holder.TryAcquire(soon(t), key), nil)
			wantErr(t, "TryAcquire of another of "+key.String(), other.TryAcquire(soon(t), key), advisory.ErrHeld)
		}
		if n := locks(t, d); n != len(golden) {
			t.Errorf("%d names are %d locks", len(golden), n)
		}
	})
}

func TestATransactionThatIsNoneIsRefused(t *testing.T) {
	t.Parallel()
	for what, tx := range map[string]advisory.Tx{"InTx(nil)": advisory.InTx(nil), "InTx of a nil pointer": advisory.InTx((*pgxpool.Tx)(nil)), "InSQLTx(nil)": advisory.InSQLTx(nil), "Tx{}": {}} {
		wantErr(t, what, tx.TryAcquire(soon(t), advisory.Name("a")), advisory.ErrInvalidOption)
	}
	wantErr(t, "a zero Option", advisory.Tx{}.Acquire(soon(t), advisory.Name("a"), advisory.Option{}), advisory.ErrInvalidOption)
}
