package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
)

var levels = []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}

// opened begins a transaction and takes its snapshot.
func opened(t *testing.T, conn *pgx.Conn, level pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	tx, err := conn.BeginTx(soon(t), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(soon(t), `SELECT count(*) FROM diary`); err != nil {
		t.Fatal(err)
	}
	return tx
}

// scribble writes what nothing but the held lock protects.
func scribble(t *testing.T, tx pgx.Tx, who string) error {
	t.Helper()
	_, err := tx.Exec(soon(t), `INSERT INTO diary (who) VALUES ($1)`, who)
	return err
}

// A held transaction commits before the next grant is made, or not at all: at every isolation level, wherever the lease runs
// out and another takes over.
func TestNoHeldTransactionCommitsAfterALaterGrant(t *testing.T) {
	t.Parallel()
	// When the lease has run out and another asks for the lock.
	const (
		beforeBegin = "before it begins"
		beforeHold  = "before it holds"
		whileHold   = "while it asks to hold"
		undone      = "while it asks to hold, and undone"
		beforeWrite = "before it writes"
		beforeEnd   = "before it commits"
		afterEnd    = "after it has committed"
	)
	d, _ := diary(t)
	holder, rival := client(t, d), client(t, d)
	conn, other := d.Conn(t), d.Conn(t)
	for _, level := range levels {
		for _, when := range []string{beforeBegin, beforeHold, whileHold, undone, beforeWrite, beforeEnd, afterEnd} {
			t.Run(fmt.Sprintf("%s, another comes %s", level, when), func(t *testing.T) {
				d.Exec(t, `TRUNCATE diary; UPDATE pglock.leases SET expires_at = 'epoch'`)
				old := take(t, holder, "a", pglock.NoRenewal())
				comes := func() error { // with a try, which must not hang
					d.Age(t, "a", time.Minute)
					l, err := rival.TryAcquire(soon(t), "a", pglock.NoRenewal())
					if err == nil && l.Token() <= old.Token() {
						t.Errorf("token %d after %d", l.Token(), old.Token())
					}
					return err
				}
				if when == beforeBegin {
					wantErr(t, "another", comes(), nil)
				}
				if when == undone {
					d.Age(t, "a", time.Minute) // the snapshot is to see it
				}
				tx := opened(t, conn, level)
				var holding error
				switch when {
				case beforeHold:
					wantErr(t, "another", comes(), nil)
					holding = fence.Hold(soon(t), tx, old.Grant())
				case whileHold, undone:
					d.Age(t, "a", time.Minute)
					if _, err := other.Exec(soon(t), `BEGIN; SELECT status FROM pglock.acquire(ARRAY['a'], ARRAY[gen_random_uuid()], 'other',
						ARRAY[30000000], ARRAY[0], ARRAY[NULL], 0)`); err != nil {
						t.Fatal(err)
					}
					asks := async(func() error { return fence.Hold(soon(t), tx, old.Grant()) })
					d.WaitFor(t, pgtest.Waiting)
					if _, err := other.Exec(soon(t), map[string]string{whileHold: `COMMIT`, undone: `ROLLBACK`}[when]); err != nil {
						t.Fatal(err)
					}
					holding = happens(t, "Hold comes back", asks)
				default:
					holding = fence.Hold(soon(t), tx, old.Grant())
				}

				switch snapshot := level != pgx.ReadCommitted; {
				case when == beforeBegin, when == beforeHold && !snapshot, when == whileHold && !snapshot:
					wantErr(t, "Hold", holding, fence.ErrStale)
					wantLoss(t, old, pglock.Taken)
				case when == undone && !snapshot:
					wantErr(t, "Hold", holding, fence.ErrExpired)
				case when == beforeHold, when == whileHold, when == undone:
					if state(holding) != "40001" {
						t.Errorf("Hold = %v, want 40001", holding)
					}
				default:
					wantErr(t, "Hold", holding, nil)
				}
				if holding != nil {
					wantErr(t, "Rollback", tx.Rollback(soon(t)), nil)
					if got := entries(t, d); got != "" {
						t.Errorf("written: %q", got)
					}
					return
				}
				if when == beforeWrite {
					wantErr(t, "another, while the transaction is open", comes(), pglock.ErrHeld)
				}
				wantErr(t, "the write", scribble(t, tx, "old"), nil)
				if when == beforeEnd {
					wantErr(t, "another, while the transaction is open", comes(), pglock.ErrHeld)
				}
				wantErr(t, "Commit", tx.Commit(soon(t)), nil)
				wantErr(t, "another, after it", comes(), nil)
				if got := entries(t, d); got != "old" {
					t.Errorf("written: %q", got)
				}
			})
		}
	}
}

// A transaction that began before its grant sees the lock as an earlier holder had it. That says nothing of the grant, and ends no lease.
func TestATransactionOlderThanItsGrantIsNotStale(t *testing.T) {
	t.Parallel()
	d, _ := diary(t)
	c, conn := client(t, d), d.Conn(t)
	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			wantErr(t, "Release", take(t, c, string(level)).Release(soon(t)), nil)
			tx := opened(t, conn, level)
			l := take(t, c, string(level))
			err := fence.Hold(soon(t), tx, l.Grant())
			if level == pgx.ReadCommitted {
				wantErr(t, "Hold", err, nil)
			} else if state(err) != "40001" {
				t.Errorf("Hold = %v, want 40001", err)
			}
			wantErr(t, "the lease", l.Err(), nil)
			wantErr(t, "Rollback", tx.Rollback(soon(t)), nil)
			wantErr(t, "Hold in a new transaction", fence.Hold(soon(t), opened(t, d.Conn(t), level), l.Grant()), nil)
		})
	}
}

// The holder's own heartbeat passes its transaction, and so does its release, at every isolation level.
func TestAHeldTransactionHoldsUpNeitherRenewalNorRelease(t *testing.T) {
	t.Parallel()
	d, pool := diary(t)
	c, rival := open(t, d.URL, pglock.Config{RenewEvery: 100 * time.Millisecond}), client(t, d)
	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			d.Exec(t, `TRUNCATE diary`)
			l := take(t, c, "a")
			err := fence.HeldTx(soon(t), pool, l.Grant(), func(ctx context.Context, tx pgx.Tx) error {
				renewedAgain(t, d, "a")
				renewedAgain(t, d, "a")
				wantErr(t, "the write", scribble(t, tx, "old"), nil)
				release(t, l)
				refused(t, rival, "a") // until the transaction has ended
				return nil
			}, fence.Isolation(level))
			wantErr(t, "HeldTx", err, nil)
			release(t, take(t, rival, "a"))
			if got := entries(t, d); got != "old" {
				t.Errorf("written: %q", got)
			}
		})
	}
}

func TestTransactionsThatOverlapCannotKeepALockForEver(t *testing.T) {
	t.Parallel()
	d, pool := diary(t)
	l := take(t, client(t, d), "a", pglock.NoRenewal())
	err := fence.HeldTx(soon(t), pool, l.Grant(), func(_ context.Context, tx pgx.Tx) error {
		wantErr(t, "a second one beside it", fence.HeldTx(soon(t), pool, l.Grant(), func(context.Context, pgx.Tx) error { return nil }), nil)
		d.Age(t, "a", time.Minute)
		wantErr(t, "a third one, of an expired lease", fence.HeldTx(soon(t), pool, l.Grant(), func(context.Context, pgx.Tx) error { return nil }),
			fence.ErrExpired)
		return scribble(t, tx, "first")
	})
	wantErr(t, "the first one", err, nil)
	take(t, client(t, d), "a")
}

// A writer that stops with its transaction open, as a process does that is paused, keeps others away for as long as the limit.
func TestAStoppedWriterIsThrownOut(t *testing.T) {
	t.Parallel()
	d, _ := diary(t)
	l := take(t, client(t, d), "a", pglock.NoRenewal())
	tx := opened(t, d.Conn(t), pgx.ReadCommitted)
	wantErr(t, "Hold", fence.Hold(soon(t), tx, l.Grant(), fence.Limit(200*time.Millisecond)), nil)
	wantErr(t, "the write", scribble(t, tx, "old"), nil)
	d.Age(t, "a", time.Minute)
	granted(t, acquiring(soon(t), client(t, d), "a"))
	if err := tx.Commit(soon(t)); err == nil {
		t.Error("it has committed")
	}
	if got := entries(t, d); got != "" {
		t.Errorf("written: %q", got)
	}
}

// The same in the middle of what it sends, where the server waits for more and is not idle.
func TestAWriterThatStopsInAPipelineIsThrownOut(t *testing.T) {
	t.Parallel()
	d, _ := diary(t)
	if pgtest.Query[int](t, d, `SELECT current_setting('server_version_num')::int`) < 170000 {
		t.Skip("PostgreSQL before 17 has no limit that ends such a transaction: see fence.Hold")
	}
	l := take(t, client(t, d), "a", pglock.NoRenewal())
	stops := d.Conn(t).PgConn()
	front := stops.Frontend()
	for _, sql := range []string{"BEGIN", fmt.Sprintf(`CALL pglock.fence_begin_held('a', 0, %d, 200, 200)`, l.Token()), `INSERT INTO diary (who) VALUES ('old')`} {
		front.SendParse(&pgproto3.Parse{Query: sql})
		front.SendBind(&pgproto3.Bind{})
		front.SendExecute(&pgproto3.Execute{})
	}
	front.Send(&pgproto3.Flush{}) // and no Sync
	if err := front.Flush(); err != nil {
		t.Fatal(err)
	}
	d.WaitFor(t, fmt.Sprintf(`SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %d)`, stops.PID()))
	d.Age(t, "a", time.Minute)
	granted(t, acquiring(soon(t), client(t, d), "a"))
	if got := entries(t, d); got != "" {
		t.Errorf("written: %q", got)
	}
}

// The limits end with the transaction, and never lift stricter ones.
func TestTheLimitsOfAHeldTransactionAreItsOwn(t *testing.T) {
	t.Parallel()
	d, _ := diary(t)
	l := take(t, client(t, d), "a", pglock.NoRenewal())
	conn := d.Conn(t)
	type querier interface {
		QueryRow(context.Context, string, ...any) pgx.Row
	}
	limits := func(db querier) (idle, statement, total string) {
		if err := db.QueryRow(soon(t), `SELECT current_setting('idle_in_transaction_session_timeout'), current_setting('statement_timeout'),
			coalesce(current_setting('transaction_timeout', true), 'not before 17')`).Scan(&idle, &statement, &total); err != nil {
			t.Fatal(err)
		}
		return idle, statement, total
	}
	idle, statement, total := limits(conn)
	for set, want := range map[string][2]string{
		`SELECT`: {"5s", "1min"},
		`SET LOCAL idle_in_transaction_session_timeout = '4s'; SET LOCAL statement_timeout = '7s'`: {"4s", "7s"},
		`SET LOCAL idle_in_transaction_session_timeout = '6s'; SET LOCAL statement_timeout = '1d'`: {"5s", "1min"},
	} {
		for how, hold := range map[string]func(pgx.Tx) error{
			"Hold": func(tx pgx.Tx) error { return fence.Hold(soon(t), tx, l.Grant()) },
			"what HeldTx sends with BEGIN": func(tx pgx.Tx) error {
				_, err := tx.Exec(soon(t), fmt.Sprintf(`CALL pglock.fence_begin_held('a', 0, %d, 5000, 60000)`, l.Token()))
				return err
			},
		} {
			tx := opened(t, conn, pgx.ReadCommitted)
			if _, err := tx.Exec(soon(t), set); err != nil {
				t.Fatal(err)
			}
			wantErr(t, how, hold(tx), nil)
			i, s, all := limits(tx)
			if i != want[0] || s != want[1] || total == "0" && all != "1min" {
				t.Errorf("%s after %s: idle %s, statement %s, in all %s", how, set, i, s, all)
			}
			wantErr(t, "Commit", tx.Commit(soon(t)), nil)
		}
	}
	if i, s, all := limits(conn); i != idle || s != statement || all != total {
		t.Errorf("after the transactions: idle %s, statement %s, in all %s", i, s, all)
	}
}

// The server ends a held transaction that waits for its client, and its own words do not say that this is the price of the lock.
func TestAHeldTransactionThatWasIdleForTooLongIsToldWhy(t *testing.T) {
	t.Parallel()
	d, pool := diary(t)
	l := take(t, client(t, d), "a")
	err := fence.HeldTx(soon(t), pool, l.Grant(), func(_ context.Context, tx pgx.Tx) error {
		pid := tx.Conn().PgConn().PID()
		if _, err := tx.Exec(soon(t), `SET LOCAL idle_in_transaction_session_timeout = '50ms'`); err != nil {
			return err
		}
		d.WaitFor(t, fmt.Sprintf(`SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %d)`, pid))
		return scribble(t, tx, "idler")
	})
	if state(err) != "25P03" || !strings.Contains(err.Error(), "5s") {
		t.Errorf("HeldTx = %v, want 25P03 with the limit", err)
	}
}

// Whoever asks for the lock of its own transaction could only wait for itself.
func TestATransactionThatAsksForItsOwnLockIsToldSo(t *testing.T) {
	t.Parallel()
	d, pool := diary(t)
	c := client(t, d)
	l := take(t, c, "a")
	err := fence.HeldTx(soon(t), pool, l.Grant(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := c.Acquire(ctx, "a")
		wantErr(t, "Acquire", err, pglock.ErrOwnTransaction)
		_, err = c.TryAcquire(ctx, "a")
		wantErr(t, "TryAcquire", err, pglock.ErrOwnTransaction)
		wantErr(t, "Do", c.Do(ctx, "a", func(context.Context, *pglock.Lease) error { return nil }), pglock.ErrOwnTransaction)
		other, err := c.Acquire(ctx, "b")
		wantErr(t, "Acquire of another lock", err, nil)
		release(t, other)
		return nil
	})
	wantErr(t, "HeldTx", err, nil)
}

// Contexts know no databases: whether the lock in the way is the caller's own is told by its token, whichever client asks, and how it
// connects. A lock of the same name in another database is another lock.
func TestTheCallersOwnLockIsToldFromOneOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	d, pool := diary(t)
	elsewhere, _ := diary(t)
	c, sameDatabase, otherDatabase := client(t, d), open(t, with(t, d.URL, "application_name", "by another DSN"), pglock.Config{}), client(t, elsewhere)
	elsewhere.Exec(t, `SELECT pglock.raise_token_floor(0)`) // both are copies, made behind the guard's back
	their := client(t, elsewhere)
	asks := func(ctx context.Context, wanted error, between func()) {
		t.Helper()
		ctx, cancel := context.WithTimeout(ctx, 4*patience)
		defer cancel()
		_, err := sameDatabase.TryAcquire(ctx, "a")
		wantErr(t, "TryAcquire", err, wanted)
		between()
		_, err = sameDatabase.Acquire(ctx, "a")
		wantErr(t, "Acquire", err, wanted)
		between()
		_, err = sameDatabase.Acquire(ctx, "a", pglock.Fair())
		wantErr(t, "Acquire in a line", err, wanted)
		between()
		_, err = sameDatabase.AcquireAll(ctx, []string{"b", "a"})
		wantErr(t, "AcquireAll", err, wanted)
		between()
		waiting, giveUp := context.WithCancel(context.Background())
		other := acquiring(waiting, sameDatabase, "a") // behind one that waits for the same, and is not told what only concerns the caller
		eventually(t, "another waits", func() bool { return pglock.Queued(sameDatabase, "a") == 1 && pglock.Refused(sameDatabase, "a") })
		_, err = sameDatabase.Acquire(ctx, "a")
		wantErr(t, "Acquire behind another", err, wanted)
		between()
		giveUp()
		wantErr(t, "the other", happens(t, "it gives up", other).err, context.Canceled)
		theirs := take(t, their, "a")
		_, err = otherDatabase.TryAcquire(ctx, "a")
		wantErr(t, "TryAcquire of what is held in another database", err, pglock.ErrHeld)
		release(t, theirs)
		l, err := otherDatabase.Acquire(ctx, "a")
		wantErr(t, "Acquire in another database", err, nil)
		if err == nil {
			release(t, l)
		}
	}
	l := take(t, c, "a")
	asks(l.Context(), pglock.ErrReentrant, func() {})
	wantErr(t, "HeldTx", fence.HeldTx(soon(t), pool, l.Grant(), func(ctx context.Context, tx pgx.Tx) error {
		asks(ctx, pglock.ErrOwnTransaction, func() { // the server ends a transaction that is idle for too long
			_, err := tx.Exec(ctx, `SELECT 1`)
			wantErr(t, "the transaction", err, nil)
		})
		return nil
	}), nil)
	wantErr(t, "HeldTx, and the lease is released", fence.HeldTx(soon(t), pool, l.Grant(), func(ctx context.Context, tx pgx.Tx) error {
		release(t, l)
		for _, c := range []*pglock.Client{c, sameDatabase} {
			_, err := c.Acquire(ctx, "a")
			wantErr(t, "Acquire after the release", err, pglock.ErrOwnTransaction)
		}
		return nil
	}), nil)
}

func TestWhatCannotBeHeldIsToldApart(t *testing.T) {
	t.Parallel()
	d, pool := diary(t)
	l := take(t, client(t, d), "a")
	unused := take(t, client(t, d), "gone")
	release(t, unused)
	d.Exec(t, `DELETE FROM pglock.leases WHERE name = 'gone'`)
	made, deleted, elsewhere := l.Grant(), fence.Grant{Lock: "gone", Token: unused.Token()}, fence.Grant{Lock: "b", Token: 7}
	made.Token++
	failure := errors.New("no money")
	for what, c := range map[string]struct {
		g    fence.Grant
		f    func(context.Context, pgx.Tx) error
		want error
	}{
		"a token that was made up":           {made, nil, fence.ErrNeverGranted},
		"a lock that nobody used here":       {elsewhere, nil, fence.ErrElsewhere},
		"a lock whose row was deleted":       {deleted, nil, fence.ErrElsewhere},
		"a failure of the transaction's own": {l.Grant(), func(_ context.Context, tx pgx.Tx) error { return errors.Join(scribble(t, tx, "x"), failure) }, failure},
	} {
		f := c.f
		if f == nil {
			f = func(context.Context, pgx.Tx) error { t.Errorf("%s: it ran", what); return nil }
		}
		wantErr(t, what, fence.HeldTx(soon(t), pool, c.g, f), c.want)
	}
	if got := entries(t, d); got != "" {
		t.Errorf("written: %q", got)
	}
	wantErr(t, "the lease", l.Err(), nil)
}

// The limit bounds a transaction on this side too, and says so.
func TestAHeldTransactionEndsWithItsLimit(t *testing.T) {
	t.Parallel()
	d, pool := diary(t)
	l := take(t, client(t, d), "a")
	err := fence.HeldTx(soon(t), pool, l.Grant(), func(ctx context.Context, tx pgx.Tx) error {
		wantErr(t, "the write", scribble(t, tx, "old"), nil)
		<-ctx.Done()
		return context.Cause(ctx)
	}, fence.Limit(2*time.Second))
	wantErr(t, "HeldTx", err, context.DeadlineExceeded)
	if err == nil || !strings.Contains(err.Error(), "limit of 2s") {
		t.Errorf("HeldTx = %v, which does not name the limit", err)
	}
	if got := entries(t, d); got != "" {
		t.Errorf("written: %q", got)
	}
	wantErr(t, "the lease", l.Err(), nil)
}
