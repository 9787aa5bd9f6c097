package once_test

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/fencedlock/fencedlock/pglock/once"
)

// effects are what a job writes; each row is one effect.
func effects(t testing.TB) *pgtest.Database {
	t.Helper()
	d := pgtest.DB(t)
	d.Exec(t, `CREATE TABLE effects (due timestamptz)`)
	return d
}

func effect(due time.Time) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1)`, due)
		return err
	}
}

func count(t testing.TB, d *pgtest.Database) int {
	t.Helper()
	return pgtest.Query[int](t, d, `SELECT count(*) FROM effects`)
}

// What cannot be begun fails no occurrence: the next call runs it.
func TestAConnectionInATransactionIsRefusedBeforeTheOccurrenceIsBegun(t *testing.T) {
	t.Parallel()
	d := effects(t)
	runs := runner(t, d.URL, "a", d.Pool(t))
	pooled, err := d.Pool(t).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer pooled.Release()
	for job, conn := range map[string]interface {
		fence.Beginner
		Begin(context.Context) (pgx.Tx, error)
	}{"a connection": d.Conn(t), "a pool's": pooled} {
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		wantErr(t, job, runs.Tx(soon(t), conn, job, tick, effect(tick)), once.ErrInvalid)
		wantErr(t, "rollback", tx.Rollback(t.Context()), nil)
		wantErr(t, job+": afterwards", runs.Tx(soon(t), conn, job, tick, effect(tick)), nil)
	}
}

// What comes first is part of it.
func TestFirstIsInTheTransactionOfTheRecord(t *testing.T) {
	t.Parallel()
	d := effects(t)
	pool := d.Pool(t)
	runs := runner(t, d.URL, "a", pool)
	var b pgx.Batch
	b.Queue(`INSERT INTO effects VALUES ($1)`, tick)
	first := once.Held(fence.First(&b))
	wantErr(t, "Tx that fails", runs.Tx(soon(t), pool, "fails", tick, func(context.Context, pgx.Tx) error { return errBroken }, first), errBroken)
	if n := count(t, d); n != 0 {
		t.Errorf("%d effects of a failure", n)
	}
	wantErr(t, "Tx", runs.Tx(soon(t), pool, "report", tick, effect(tick), first), nil)
	wantDuplicate(t, "Tx", runs.Tx(soon(t), pool, "report", tick, effect(tick), first), once.Done, "a")
	if n := count(t, d); n != 2 {
		t.Errorf("%d effects, want the first one and that of f", n)
	}
}

// What the job writes and the record of its success are one: both are there, or neither.
func TestTheSuccessAndTheWritesAreOneTransaction(t *testing.T) {
	t.Parallel()
	d := effects(t)
	pool := d.Pool(t)
	runs := runner(t, d.URL, "a", pool)
	err := runs.Tx(soon(t), pool, "report", tick, func(ctx context.Context, tx pgx.Tx) error {
		wantErr(t, "the write", effect(tick)(ctx, tx), nil)
		if rec := last(t, runs); rec.Outcome != once.Running {
			t.Errorf("on record in the transaction: %+v", rec)
		}
		return errBroken
	})
	wantErr(t, "Tx that fails", err, errBroken)
	if rec := last(t, runs); rec.Outcome != once.Failed || rec.Detail != "broken" || count(t, d) != 0 {
		t.Errorf("on record: %+v, with %d effects", rec, count(t, d))
	}
	wantDuplicate(t, "Tx", runs.Tx(soon(t), pool, "report", tick, effect(tick)), once.Failed, "a")
	func() {
		defer func() {
			if thrown := recover(); thrown != any(errBroken) {
				t.Errorf("it panics with %v", thrown)
			}
		}()
		_ = runs.Tx(soon(t), pool, "report", tick, func(ctx context.Context, tx pgx.Tx) error {
			wantErr(t, "the write", effect(tick)(ctx, tx), nil)
			panic(errBroken)
		}, once.Retry())
	}()
	if rec := last(t, runs); rec.Outcome != once.Failed || rec.Detail != "panic: broken" || count(t, d) != 0 {
		t.Errorf("on record: %+v, with %d effects", rec, count(t, d))
	}
	wantErr(t, "Tx with too short a limit", runs.Tx(soon(t), pool, "report", tick, func(ctx context.Context, _ pgx.Tx) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}, once.Retry(), once.Held(fence.Limit(100*time.Millisecond))), context.DeadlineExceeded)
	wantErr(t, "Tx with Retry", runs.Tx(soon(t), pool, "report", tick, effect(tick), once.Retry()), nil)
	wantDuplicate(t, "Tx with Retry", runs.Tx(soon(t), pool, "report", tick, effect(tick), once.Retry()), once.Done, "a")
	if rec := last(t, runs); rec.Outcome != once.Done || rec.Attempt != 4 || count(t, d) != 1 {
		t.Errorf("on record: %+v, with %d effects", rec, count(t, d))
	}
}

func TestTheSameOverDatabaseSQL(t *testing.T) {
	t.Parallel()
	d := effects(t)
	db := stdlib.OpenDBFromPool(d.Pool(t))
	defer db.Close() //nolint:errcheck // nothing is open
	runs := runner(t, d.URL, "a", fence.SQL(db))
	write := func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES ($1)`, tick)
		return err
	}
	err := runs.TxSQL(soon(t), db, "report", tick, func(ctx context.Context, tx *sql.Tx) error {
		return errors.Join(errBroken, write(ctx, tx))
	})
	wantErr(t, "TxSQL that fails", err, errBroken)
	wantErr(t, "TxSQL with Retry", runs.TxSQL(soon(t), db, "report", tick, write, once.Retry()), nil)
	wantDuplicate(t, "TxSQL", runs.TxSQL(soon(t), db, "report", tick, write, once.Retry()), once.Done, "a")
	wantErr(t, "Run", runs.Run(soon(t), "other", tick, does(errBroken)), errBroken)
	if rec := last(t, runs); rec.Outcome != once.Done || rec.Attempt != 2 || count(t, d) != 1 {
		t.Errorf("on record: %+v, with %d effects", rec, count(t, d))
	}
}

// A transaction that its ctx ends fails with the cause, and not only with a cancellation that the caller knows nothing of.
func TestATransactionWhoseContextEndsSaysWhy(t *testing.T) {
	t.Parallel()
	d := effects(t)
	pool := d.Pool(t)
	runs := runner(t, d.URL, "a", pool)
	why := errors.New("why")
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close() //nolint:errcheck // nothing is open
	for i, tx := range []func(ctx context.Context, due time.Time, end func()) error{
		func(ctx context.Context, due time.Time, end func()) error {
			return runs.Tx(ctx, pool, "report", due, func(ctx context.Context, tx pgx.Tx) error { end(); <-ctx.Done(); return effect(due)(ctx, tx) })
		},
		func(ctx context.Context, due time.Time, end func()) error {
			return runs.TxSQL(ctx, db, "report", due, func(ctx context.Context, _ *sql.Tx) error { end(); <-ctx.Done(); return nil })
		},
	} {
		ctx, cancel := context.WithCancelCause(soon(t))
		due := tick.AddDate(0, 0, i)
		wantErr(t, []string{"Tx", "TxSQL"}[i], tx(ctx, due, func() { cancel(why) }), why)
		if rec := last(t, runs); rec.Due != due || rec.Outcome != once.Failed || count(t, d) != 0 {
			t.Errorf("on record: %+v, with %d effects", rec, count(t, d))
		}
	}
}

// A commit whose answer is lost is looked up: it is a success if it came to pass, and a failure with nothing written if not.
func TestALostCommitIsLookedUp(t *testing.T) {
	t.Parallel()
	for _, part := range []string{"reply", "request"} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			d := effects(t)
			p := pgtest.NewProxy(t, d)
			pool := through(t, p)
			runs := runner(t, d.URL, "a", pool)
			lost := map[string]func(string) <-chan struct{}{"reply": p.LoseNextReply, "request": p.LoseNextRequest}[part]("commit")
			err := runs.Tx(soon(t), pool, "report", tick, effect(tick))
			happens(t, "it is lost", lost)
			rec := last(t, runs)
			if part == "reply" {
				wantErr(t, "Tx", err, nil)
				if rec.Outcome != once.Done || count(t, d) != 1 {
					t.Errorf("on record: %+v, with %d effects", rec, count(t, d))
				}
				return
			}
			wantErr(t, "Tx", err, fence.ErrCommitUnknown)
			if rec.Outcome != once.Failed || count(t, d) != 0 {
				t.Errorf("on record: %+v, with %d effects", rec, count(t, d))
			}
		})
	}
}

// A transaction that was paused for longer than its lease does not commit beside the attempt that came after it.
func TestALateTransactionCommitsNothing(t *testing.T) {
	t.Parallel()
	d := effects(t)
	pool := d.Pool(t)
	a, b := runner(t, d.URL, "a", pool), runner(t, d.URL, "b", pool)
	err := a.Run(soon(t), "report", tick, func(ctx context.Context, l *pglock.Lease) error { // as Tx would, but for the pause
		d.Age(t, lockName, time.Minute)
		wantErr(t, "Tx of the next", b.Tx(soon(t), pool, "report", tick, effect(tick), once.Retry()), nil)
		return fence.HeldTx(soon(t), pool, l.Grant(), effect(tick))
	}, once.Lease(pglock.NoRenewal()))
	wantErr(t, "the late one", err, fence.ErrStale)
	if rec := last(t, a); rec.Outcome != once.Done || rec.Owner != "b" || count(t, d) != 1 {
		t.Errorf("on record: %+v, with %d effects", rec, count(t, d))
	}
}

// Under random faults each occurrence that is done has one effect, and no other has one. Some replicas retry all, and of the
// other job each has one chance.
func TestEffectsAreAsManyAsOccurrencesDoneUnderFaults(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("PGLOCK_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("PGLOCK_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	d := pgtest.DB(t)
	d.Exec(t, `CREATE TABLE effects (due timestamptz, job text)`)
	p := pgtest.NewProxy(t, d)
	pools := []*pgxpool.Pool{through(t, p), through(t, p)}
	replicas := []*once.Runner{runner(t, p.URL(), "a", pools[0]), runner(t, p.URL(), "b", pools[1])}
	faults := []struct {
		name string
		make func()
	}{
		{"none", func() {}},
		{"commit, reply", func() { p.LoseNextReply("commit") }},
		{"commit, request", func() { p.LoseNextRequest("commit") }},
		{"begin", func() { p.LoseNextReply("once_start") }},
		{"end", func() { p.LoseNextReply("once_end") }},
		{"end, request", func() { p.LoseNextRequest("once_end") }},
		{"write", func() { p.LoseNextReply("INSERT INTO effects") }},
		{"cut", p.Cut},
		{"kill", func() { d.KillBackends(t, "true") }},
	}
	failures, rounds := 0, pgtest.Rounds(2, 40)*len(faults)
	for round := range rounds {
		fault := faults[round%len(faults)]
		due, within := tick.Add(time.Duration(round)*time.Second), time.Duration(rng.IntN(20))*time.Millisecond
		var all sync.WaitGroup
		var mu sync.Mutex
		for i, r := range replicas {
			for job, opts := range map[string][]once.Option{"retried": {once.Retry()}, "tried": nil} {
				all.Go(func() {
					for range 50 {
						err := r.Tx(soon(t), pools[i], job, due, func(ctx context.Context, tx pgx.Tx) error {
							_, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1, $2)`, due, job)
							return err
						}, opts...)
						dup, isDup := errors.AsType[*once.DuplicateError](err)
						if err == nil || isDup && (dup.Outcome == once.Done || job == "tried") {
							return
						}
						mu.Lock()
						failures++
						mu.Unlock()
					}
					t.Errorf("round %d, %s: %s is not done", round, fault.name, job)
				})
			}
		}
		pace := time.NewTimer(within) // when the fault strikes is up to the seed
		<-pace.C
		fault.make()
		all.Wait()
	}
	for what, sql := range map[string]string{
		"effects without success": `SELECT count(*) FROM effects e WHERE NOT EXISTS (SELECT FROM pglock.once o WHERE (o.job, o.due) = (e.job, e.due) AND o.outcome = 'done')`,
		"successes without one effect": `SELECT count(*) FROM pglock.once o WHERE o.outcome = 'done'
			AND (SELECT count(*) FROM effects e WHERE (o.job, o.due) = (e.job, e.due)) <> 1`,
	} {
		if n := pgtest.Query[int](t, d, sql); n != 0 {
			t.Errorf("%d %s", n, what)
		}
	}
	done := func(job string) int {
		return pgtest.Query[int](t, d, `SELECT count(*) FROM pglock.once WHERE outcome = 'done' AND job = $1`, job)
	}
	if n := done("retried"); n != rounds {
		t.Errorf("%d of %d occurrences that are retried are done", n, rounds)
	}
	t.Logf("%d rounds, %d failures, %d done in one try", rounds, failures, done("tried"))
	if failures < rounds/4 {
		t.Errorf("the faults have made %d calls fail in %d rounds: they do not strike", failures, rounds)
	}
}

// However a transaction comes to not commit, though f has returned nil: nothing was written, it is on record as failed, and a Retry does it.
func TestATransactionThatCannotCommitHasFailed(t *testing.T) {
	t.Parallel()
	exec := func(sql string) func(context.Context, *testing.T, *pgtest.Database, pgx.Tx) error {
		return func(ctx context.Context, _ *testing.T, _ *pgtest.Database, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sql)
			return err
		}
	}
	for what, spoil := range map[string]func(context.Context, *testing.T, *pgtest.Database, pgx.Tx) error{
		"a deferred constraint": exec(`INSERT INTO orders VALUES (1)`),
		"an error that f keeps to itself": func(ctx context.Context, _ *testing.T, _ *pgtest.Database, tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, `SELECT 1/0`)
			return nil
		},
		"f has rolled back":          func(ctx context.Context, _ *testing.T, _ *pgtest.Database, tx pgx.Tx) error { return tx.Rollback(ctx) },
		"f has rolled back in SQL":   exec(`ROLLBACK`),
		"f has rolled back and anew": exec(`ROLLBACK AND CHAIN`),
		"another has read what f writes, and written what f reads": func(ctx context.Context, t *testing.T, d *pgtest.Database, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT FROM orders`); err != nil {
				return err
			}
			other, err := d.Conn(t).BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.Serializable})
			if err != nil {
				return err
			}
			if _, err := other.Exec(ctx, `SELECT FROM effects`); err != nil {
				return err
			}
			if _, err := other.Exec(ctx, `SET CONSTRAINTS ALL DEFERRED; INSERT INTO orders SELECT 1 WHERE false; INSERT INTO parents VALUES (1); INSERT INTO orders VALUES (1)`); err != nil {
				return err
			}
			return other.Commit(ctx)
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := effects(t)
			d.Exec(t, `CREATE TABLE parents (id int PRIMARY KEY)`)
			d.Exec(t, `CREATE TABLE orders (parent int REFERENCES parents DEFERRABLE INITIALLY DEFERRED)`)
			pool := d.Pool(t)
			runs := runner(t, d.URL, "a", pool)
			strict := once.Held(fence.Isolation(pgx.Serializable))
			err := runs.Tx(soon(t), pool, "report", tick, func(ctx context.Context, tx pgx.Tx) error {
				if err := effect(tick)(ctx, tx); err != nil {
					return err
				}
				return spoil(ctx, t, d, tx)
			}, strict)
			if rec := last(t, runs); err == nil || rec.Outcome != once.Failed || rec.Detail == "" || count(t, d) != 0 {
				t.Errorf("Tx = %v; on record: %+v, with %d effects", err, rec, count(t, d))
			}
			wantErr(t, "Tx with Retry", runs.Tx(soon(t), pool, "report", tick, effect(tick), once.Retry(), strict), nil)
			if count(t, d) != 1 {
				t.Errorf("%d effects", count(t, d))
			}
		})
	}
}

// A script with a COMMIT of its own leaves its writes and no transaction to put the record in: that is told, and is no success.
func TestATransactionThatFHasCommittedIsNoSuccess(t *testing.T) {
	t.Parallel()
	d := effects(t)
	pool := d.Pool(t)
	std := stdlib.OpenDBFromPool(pool)
	defer std.Close() //nolint:errcheck // the pool stays
	runs := runner(t, d.URL, "a", pool)
	const script = `BEGIN; INSERT INTO effects VALUES (now()); COMMIT`
	for what, err := range map[string]error{
		"Tx": runs.Tx(soon(t), pool, "report", tick, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, script)
			return err
		}),
		"TxSQL": runs.TxSQL(soon(t), std, "report", tick.Add(time.Hour), func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, script)
			return err
		}),
	} {
		if err == nil || !strings.Contains(err.Error(), "f has ended the transaction") {
			t.Errorf("%s = %v", what, err)
		}
		if rec := last(t, runs); rec.Outcome != once.Failed || !strings.Contains(rec.Detail, "f has ended the transaction") {
			t.Errorf("%s, on record: %+v", what, rec)
		}
	}
}
