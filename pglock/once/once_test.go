package once_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/migrations"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/fencedlock/fencedlock/pglock/once"
)

// Replicas whose clocks and zones differ try one tick, all at once and late: one runs it, and the others are told who. They
// need no right but that to take locks.
func TestOneTickRunsOnceOverAllReplicas(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	role := d.Role(t)
	d.Exec(t, fmt.Sprintf(`SELECT pglock.grant_locker('%s')`, role))
	pool, err := pgxpool.New(t.Context(), d.URLAs(role))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	auckland, err := time.LoadLocation("Pacific/Auckland")
	if err != nil {
		t.Skip(err)
	}
	now := time.Now()              // with a monotonic reading, which the sum keeps
	forms := map[string]time.Time{ // in which replicas have the same instant
		"utc": tick, "auckland": tick.In(auckland), "fine": tick.Add(999 * time.Nanosecond), "monotonic": now.Add(tick.Sub(now)),
	}
	type answer struct {
		owner string
		err   error
	}
	began, answers, finish := make(chan string, len(forms)), make(chan answer, len(forms)), make(chan struct{})
	runs := map[string]*once.Runner{}
	for owner, due := range forms {
		r := runner(t, d.URLAs(role), owner, pool)
		runs[owner] = r
		go func() {
			answers <- answer{owner, r.Run(soon(t), "report", due, func(_ context.Context, l *pglock.Lease) error {
				if l.Name() != lockName {
					t.Errorf("its lock is %q, want %q", l.Name(), lockName)
				}
				began <- owner
				<-finish
				return nil
			})}
		}()
	}
	winner := happens(t, "one begins", began)
	for range len(forms) - 1 {
		a := happens(t, "another is answered", answers)
		wantDuplicate(t, "Run while it runs", a.err, once.Running, winner)
	}
	wantDuplicate(t, "Run of the same replica", runs[winner].Run(soon(t), "report", tick, nothing(t)), once.Running, winner)
	if rec := last(t, runs["utc"]); rec.Outcome != once.Running || rec.Owner != winner {
		t.Errorf("on record: %+v, want that it runs", rec)
	}
	close(finish)
	if a := happens(t, "it ends", answers); a.err != nil || a.owner != winner || len(began) > 0 {
		t.Errorf("Run of %s = %v, and %d began after %s", a.owner, a.err, len(began), winner)
	}
	for owner, due := range forms { // by a clock that is late, say
		wantDuplicate(t, "Run after it has run", runs[owner].Run(soon(t), "report", due, nothing(t)), once.Done, winner)
		wantDuplicate(t, "Run with Retry", runs[owner].Run(soon(t), "report", due, nothing(t), once.Retry()), once.Done, winner)
	}
	rec := last(t, runs["utc"])
	if rec.Attempt != 1 || rec.Detail != "" || rec.Ended.Before(rec.Started) || time.Since(rec.Started) > time.Minute || rec.Token == 0 {
		t.Errorf("on record: %+v", rec)
	}
	for what, due := range map[string]time.Time{"a microsecond later": tick.Add(time.Microsecond), "an hour earlier": tick.Add(-time.Hour)} {
		wantErr(t, what, runs["utc"].Run(soon(t), "report", due, does(nil)), nil)
	}
}

var errBroken = errors.New("broken")

// However f ends without success, it is on record, and the lock is free. It is not run again unless the caller wants that.
func TestAFailureIsRecordedAndRunAgainOnlyWithRetry(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		f      func()
		detail string
	}{
		"error":       {nil, "broken"},
		"panic":       {func() { panic(errBroken) }, "panic: broken"},
		"Goexit":      {runtime.Goexit, "runtime.Goexit was called"},
		"long detail": {func() { panic("\x00" + strings.Repeat("é", 3000)) }, "panic: " + strings.Repeat("é", 2044)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			pool := d.Pool(t)
			a, b := runner(t, d.URL, "a", pool), runner(t, d.URL, "b", pool)
			type end struct {
				err      error
				thrown   any
				returned bool
			}
			ended := make(chan end, 1)
			go func() {
				e := end{}
				defer func() {
					e.thrown = recover()
					ended <- e
				}()
				e.err = a.Run(soon(t), "report", tick, func(context.Context, *pglock.Lease) error {
					if c.f != nil {
						c.f()
					}
					return errBroken
				})
				e.returned = true
			}()
			e := happens(t, "it ends", ended)
			switch {
			case name == "error" && (!e.returned || !errors.Is(e.err, errBroken)):
				t.Errorf("Run = %v", e.err)
			case name == "panic" && e.thrown != any(errBroken):
				t.Errorf("it panics with %v", e.thrown)
			case name == "Goexit" && (e.returned || e.thrown != nil):
				t.Errorf("the goroutine goes on, or panics with %v", e.thrown)
			}
			if rec := last(t, b); rec.Outcome != once.Failed || rec.Detail != c.detail || rec.Owner != "a" {
				t.Errorf("on record: %.200v", rec)
			}
			if pgtest.Query[bool](t, d, `SELECT held FROM pglock.holder($1)`, lockName) {
				t.Error("the lock is held")
			}
			wantDuplicate(t, "Run", b.Run(soon(t), "report", tick, nothing(t)), once.Failed, "a")
			wantErr(t, "Run with Retry", b.Run(soon(t), "report", tick, does(errBroken), once.Retry()), errBroken)
			wantErr(t, "Run with Retry", b.Run(soon(t), "report", tick, does(nil), once.Retry()), nil)
			if rec := last(t, a); rec.Outcome != once.Done || rec.Detail != "" || rec.Owner != "b" || rec.Attempt != 3 {
				t.Errorf("on record: %+v, want that b has done it, in the third attempt", rec)
			}
			wantDuplicate(t, "Run with Retry", a.Run(soon(t), "report", tick, nothing(t), once.Retry()), once.Done, "b")
		})
	}
}

// With Retry a call waits for the one that is at work, and takes over if that fails. Never two at a time.
func TestARetryWaitsForTheAttemptThatRuns(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	pool := d.Pool(t)
	a, b := runner(t, d.URL, "a", pool), runner(t, d.URL, "b", pool)
	began, finish, atWork := make(chan struct{}), make(chan struct{}), false // its users come one after the other, or -race says so
	first := async(func() error {
		return a.Run(soon(t), "report", tick, func(context.Context, *pglock.Lease) error {
			atWork = true
			close(began)
			<-finish
			atWork = false
			return errBroken
		})
	})
	happens(t, "it begins", began)
	waitsInVain(t, d, b, "a")
	second := async(func() error {
		return b.Run(soon(t), "report", tick, func(context.Context, *pglock.Lease) error {
			if atWork {
				t.Error("two at a time")
			}
			return nil
		}, once.Retry())
	})
	d.WaitFor(t, `SELECT EXISTS (SELECT FROM pglock.waits)`)
	close(finish)
	wantErr(t, "the first", happens(t, "the first ends", first), errBroken)
	wantErr(t, "the second", happens(t, "the second ends", second), nil)
	if rec := last(t, a); rec.Outcome != once.Done || rec.Owner != "b" || rec.Attempt != 2 {
		t.Errorf("on record: %+v", rec)
	}
}

// HoldAtLeast and LockDelay keep the lock of an occurrence that nobody runs. Whoever asks is not told that it is running, nor that
// it was run and is not to be run again; but if it is done, then that.
func TestALockThatIsOnlyKeptIsNoRun(t *testing.T) {
	t.Parallel()
	hour := once.Lease(pglock.HoldAtLeast(time.Hour))
	failed := func(t *testing.T, d *pgtest.Database) {
		wantErr(t, "Run", runner(t, d.URL, "a", d.Pool(t)).Run(soon(t), "report", tick, does(errBroken), hour), errBroken)
	}
	crashed := func(t *testing.T, d *pgtest.Database) { // before its record was begun
		locks, err := pglock.Open(d.URL, pglock.Config{Owner: "a"})
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close(soon(t)) //nolint:errcheck // what it held is over
		if _, err := locks.TryAcquire(soon(t), lockName, pglock.LockDelay(time.Hour), pglock.NoRenewal()); err != nil {
			t.Fatal(err)
		}
		d.Exec(t, `UPDATE pglock.leases SET expires_at = clock_timestamp() - interval '1 ms', acquisition = gen_random_uuid()`)
	}
	for what, c := range map[string]struct {
		before    func(*testing.T, *pgtest.Database)
		meanwhile string // while it is waited for
		retry     bool
		want      once.Outcome // "": that of the acquisition
	}{
		"a failure":                             {before: failed, want: once.Failed},
		"a failure, with Retry":                 {before: failed, retry: true},
		"done while a Retry waits":              {before: failed, retry: true, meanwhile: `UPDATE pglock.occurrences SET outcome = 'done'`, want: once.Done},
		"a crash before the record":             {before: crashed},
		"a crash before the record, with Retry": {before: crashed, retry: true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			c.before(t, d)
			b := runner(t, d.URL, "b", d.Pool(t))
			var err error
			if c.retry {
				enough := errors.New("enough")
				ctx, cancel := context.WithCancelCause(soon(t))
				waiting := async(func() error { return b.Run(ctx, "report", tick, nothing(t), once.Retry()) })
				d.WaitFor(t, `SELECT EXISTS (SELECT FROM pglock.waits)`) // after it was told
				if c.meanwhile != "" {
					d.Exec(t, c.meanwhile)
				}
				cancel(enough)
				err = happens(t, "it gives up", waiting)
				wantErr(t, "Run", err, enough)
			} else {
				err = b.Run(soon(t), "report", tick, nothing(t))
			}
			if c.want != "" {
				wantDuplicate(t, "Run", err, c.want, "a")
				return
			}
			held, ok := errors.AsType[*pglock.HeldError](err)
			if !ok || !held.Over || errors.Is(err, once.ErrRunning) || errors.Is(err, once.ErrRan) {
				t.Errorf("Run = %v, want the error of the acquisition: nobody holds the lock", err)
			}
		})
	}
}

// waitsInVain lets a replica wait for the attempt of another, and give up.
func waitsInVain(t *testing.T, d *pgtest.Database, r *once.Runner, owner string) {
	t.Helper()
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(soon(t))
	waiting := async(func() error { return r.Run(ctx, "report", tick, nothing(t), once.Retry()) })
	d.WaitFor(t, `SELECT EXISTS (SELECT FROM pglock.waits)`) // after it was told who holds the lock
	cancel(enough)
	err := happens(t, "it gives up", waiting)
	wantDuplicate(t, "Run with Retry while another runs", err, once.Running, owner)
	wantErr(t, "Run with Retry while another runs", err, enough)
}

// A runner that was paused for longer than its lease lasts cannot say anything about the attempt that came after it.
func TestAPausedRunnerCannotOverwriteALaterAttempt(t *testing.T) {
	t.Parallel()
	for _, late := range []error{nil, errBroken} {
		for _, then := range []once.Outcome{once.Running, once.Done, once.Failed} {
			t.Run(fmt.Sprintf("%v, %s", late, then), func(t *testing.T) {
				t.Parallel()
				d := pgtest.DB(t)
				pool := d.Pool(t)
				a, b := runner(t, d.URL, "a", pool), runner(t, d.URL, "b", pool)
				began, finish := make(chan struct{}), make(chan struct{})
				second := make(chan error, 1)
				err := a.Run(soon(t), "report", tick, func(_ context.Context, l *pglock.Lease) error {
					d.Age(t, lockName, time.Minute)
					if rec := last(t, b); rec.Outcome != once.Unfinished || rec.Owner != "a" {
						t.Errorf("on record after the lease: %+v", rec)
					}
					wantDuplicate(t, "Run", b.Run(soon(t), "report", tick, nothing(t)), once.Unfinished, "a")
					go func() {
						second <- b.Run(soon(t), "report", tick, func(context.Context, *pglock.Lease) error {
							close(began)
							if then == once.Running {
								<-finish
							}
							return map[once.Outcome]error{once.Failed: errors.New("b's own failure")}[then]
						}, once.Retry())
					}()
					happens(t, "the second begins", began)
					if then != once.Running {
						second <- happens(t, "the second ends", second)
					}
					return late
				}, once.Lease(pglock.NoRenewal()))
				wantErr(t, "the late one", err, fence.ErrStale)
				wantErr(t, "the late one", err, pglock.ErrLost)
				if late != nil {
					wantErr(t, "the late one", err, late)
				}
				if rec := last(t, a); rec.Outcome != then || rec.Owner != "b" || rec.Attempt != 2 || strings.Contains(rec.Detail, "broken") {
					t.Errorf("on record: %+v, want b's: %s", rec, then)
				}
				close(finish)
				happens(t, "the second ends", second)
			})
		}
	}
}

// What a runner says late is the truth as long as nobody has begun anew.
func TestALateEndIsRecordedWhereNobodyHasBegunAnew(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	a := runner(t, d.URL, "a", d.Pool(t))
	err := a.Run(soon(t), "report", tick, func(ctx context.Context, l *pglock.Lease) error {
		d.Age(t, lockName, time.Minute)
		wantErr(t, "Renew", l.Renew(soon(t)), pglock.ErrLost)
		happens(t, "f's ctx ends", ctx.Done())
		wantErr(t, "its cause", context.Cause(ctx), pglock.ErrLost)
		return nil
	})
	wantErr(t, "Run", err, pglock.ErrLost)
	wantDuplicate(t, "Run with Retry", a.Run(soon(t), "report", tick, nothing(t), once.Retry()), once.Done, "a")
}

// What begins and ends an attempt is settled when the reply is lost: f runs once, and its end is on record.
func TestALostReplyIsSettled(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{"once_start", "once_end"} {
		for _, part := range []string{"reply", "request"} {
			t.Run(statement+", "+part, func(t *testing.T) {
				t.Parallel()
				d := pgtest.DB(t)
				p := pgtest.NewProxy(t, d)
				a := runner(t, d.URL, "a", through(t, p))
				lost := map[string]func(string) <-chan struct{}{"reply": p.LoseNextReply, "request": p.LoseNextRequest}[part](statement)
				n := 0
				err := a.Run(soon(t), "report", tick, func(context.Context, *pglock.Lease) error { n++; return nil })
				wantErr(t, "Run", err, nil)
				happens(t, "it is lost", lost)
				if rec := last(t, a); n != 1 || rec.Outcome != once.Done || rec.Attempt != 1 {
					t.Errorf("f ran %d times; on record: %+v", n, rec)
				}
			})
		}
	}
}

// A demoted is a pool of one session that may not write, as on a server that has become a standby. before is called with the number
// of each try to begin.
type demoted struct {
	*pgxpool.Pool
	tries  int
	before func(try int)
	refuse error // what all tries come to; nil: what the server says
}

func (d *demoted) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if strings.Contains(sql, "once_start") {
		d.tries++
		d.before(d.tries)
		if d.refuse != nil {
			return nil, d.refuse
		}
	}
	return d.Pool.Query(ctx, sql, args...)
}

// Whether a server that only reads will write again is for the time to tell: it is waited for, as pglock's Acquire does.
func TestAServerThatOnlyReadsIsWaitedForAndNamed(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	pc, err := pgxpool.ParseConfig(d.URL)
	wantErr(t, "ParseConfig", err, nil)
	pc.MaxConns, pc.ConnConfig.RuntimeParams["default_transaction_read_only"] = 1, "on"
	pool, err := pgxpool.NewWithConfig(t.Context(), pc)
	wantErr(t, "NewWithConfig", err, nil)
	t.Cleanup(pool.Close)
	db := &demoted{Pool: pool}
	a := runner(t, d.URL, "a", db)
	if _, err := a.Prune(soon(t), 0); !errors.Is(err, pglock.ErrReadOnly) || !strings.Contains(err.Error(), "primary") {
		t.Errorf("Prune = %v, want ErrReadOnly", err)
	}
	ctx, cancel := context.WithCancelCause(soon(t))
	over := errors.New("over")
	db.before = func(try int) {
		if try == 3 {
			cancel(over)
		}
	}
	err = a.Run(ctx, "report", tick, nothing(t))
	wantErr(t, "Run until its ctx ends", err, pglock.ErrReadOnly)
	wantErr(t, "Run until its ctx ends", err, over)

	db.tries = 0
	db.before = func(try int) {
		if try == 3 {
			_, err := pool.Exec(soon(t), `SET default_transaction_read_only = off`)
			wantErr(t, "SET", err, nil)
		}
	}
	wantErr(t, "Run through it", a.Run(soon(t), "report", tick, does(nil)), nil)
	if rec := last(t, a); db.tries != 3 || rec.Outcome != once.Done {
		t.Errorf("%d tries; on record: %+v", db.tries, rec)
	}
}

// A lock that is free and whose row is locked, as while another is being granted it, is not taken for one that is held.
func TestALockThatChangesHandsIsAskedForAgain(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	a := runner(t, d.URL, "a", d.Pool(t))
	d.Exec(t, `INSERT INTO pglock.leases (name) VALUES ($1)`, lockName)
	tx, err := d.Conn(t).Begin(t.Context())
	wantErr(t, "Begin", err, nil)
	_, err = tx.Exec(t.Context(), `SELECT FROM pglock.leases FOR UPDATE`)
	wantErr(t, "the row's lock", err, nil)
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err = a.Run(short, "report", tick, nothing(t))
	wantErr(t, "Run while it changes hands", err, context.DeadlineExceeded)
	if errors.Is(err, once.ErrRunning) {
		t.Errorf("Run while it changes hands = %v", err)
	}
	running := async(func() error { return a.Run(soon(t), "report", tick, does(nil)) })
	wantErr(t, "Rollback", tx.Rollback(t.Context()), nil)
	wantErr(t, "Run", happens(t, "it is granted", running), nil)
}

// A tick that falls into the time after a restart is not lost: Run waits, within its ctx.
func TestATickAfterARestartWaitsForGrants(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	a := runner(t, d.URL, "a", d.Pool(t))
	d.Exec(t, `UPDATE pglock.guard SET no_grants_before = clock_timestamp() + interval '1 hour'`)
	short, cancel := context.WithTimeout(t.Context(), 5*time.Second) // for the first answer, on a machine that stalls
	defer cancel()
	err := a.Run(short, "report", tick, nothing(t))
	wantErr(t, "Run while grants are held back", err, context.DeadlineExceeded)
	wantErr(t, "Run while grants are held back", err, pglock.ErrHeldBack)
	d.Exec(t, `SELECT pglock.end_hold()`)
	wantErr(t, "Run", a.Run(soon(t), "report", tick, does(nil)), nil)
}

// f's ctx is that of the caller, and of the lease.
func TestTheContextOfAnAttempt(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	a := runner(t, d.URL, "a", d.Pool(t))
	type key struct{}
	why := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, "value"))
	err := a.Run(ctx, "report", tick, func(ctx context.Context, l *pglock.Lease) error {
		if ctx.Value(key{}) != "value" || ctx.Err() != nil {
			t.Errorf("ctx has %v, and has ended: %v", ctx.Value(key{}), ctx.Err())
		}
		cancel(why)
		happens(t, "ctx ends", ctx.Done())
		if !l.Valid() {
			t.Error("the lease has ended with ctx")
		}
		return context.Cause(ctx)
	})
	wantErr(t, "Run", err, why)
	if rec := last(t, a); rec.Outcome != once.Failed || rec.Detail != "shutting down" {
		t.Errorf("on record: %+v", rec)
	}
	err = a.Run(t.Context(), "report", tick, func(ctx context.Context, l *pglock.Lease) error {
		wantErr(t, "Release", l.Release(soon(t)), nil)
		happens(t, "ctx ends", ctx.Done())
		return nil
	}, once.Retry())
	wantErr(t, "Run whose f releases", err, nil)
}

// A silent database is one that fails the test when it is asked.
type silent struct{ t *testing.T }

func (s silent) Query(_ context.Context, sql string, _ ...any) (pgx.Rows, error) {
	s.t.Errorf("it was asked: %s", sql)
	return nil, errBroken
}

func TestBadInputIsRefusedBeforeAnySQL(t *testing.T) {
	t.Parallel()
	runs := runner(t, "postgres://nobody@127.0.0.1:1/none", "a", silent{t})
	run := func(job string, due time.Time, opts ...once.Option) error {
		return runs.Run(soon(t), job, due, nothing(t), opts...)
	}
	noTx := func(context.Context, pgx.Tx) error { return nil }
	var first pgx.Batch
	first.Queue(`SELECT 1`)
	for what, err := range map[string]error{
		"no name":         run("", tick),
		"a long name":     run(strings.Repeat("x", 201), tick),
		"NUL":             run("a\x00b", tick),
		"not UTF-8":       run("\xff", tick),
		"no instant":      run("a", time.Time{}),
		"a late instant":  run("a", time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)),
		"an early one":    run("a", time.Date(0, 12, 31, 23, 0, 0, 0, time.UTC)),
		"a zero Option":   run("a", tick, once.Option{}),
		"Held of Run":     run("a", tick, once.Held(fence.Limit(time.Second))),
		"no f":            runs.Run(soon(t), "a", tick, nil),
		"no f of Tx":      runs.Tx(soon(t), nil, "a", tick, nil),
		"no f of TxSQL":   runs.TxSQL(soon(t), nil, "a", tick, nil),
		"Last":            func() error { _, err := runs.Last(soon(t), ""); return err }(),
		"History":         func() error { _, err := runs.History(soon(t), "a", 0); return err }(),
		"Prune":           func() error { _, err := runs.Prune(soon(t), -1); return err }(),
		"no schedule":     func() error { _, err := runs.Missed(soon(t), "a", nil, tick, once.All); return err }(),
		"another choice":  func() error { _, err := runs.Missed(soon(t), "a", hourly, tick, 3); return err }(),
		"New of nothing":  func() error { _, err := once.New(nil, silent{t}); return err }(),
		"Tx of nothing":   runs.Tx(soon(t), (*pgxpool.Pool)(nil), "a", tick, noTx),
		"TxSQL of none":   runs.TxSQL(soon(t), (*sql.DB)(nil), "a", tick, func(context.Context, *sql.Tx) error { return nil }),
		"a bad Limit":     runs.Tx(soon(t), new(pgx.Conn), "a", tick, noTx, once.Held(fence.Limit(-1))),
		"a bad Held":      runs.TxSQL(soon(t), new(sql.DB), "a", tick, func(context.Context, *sql.Tx) error { return nil }, once.Held(fence.Again())),
		"First of SQL":    runs.TxSQL(soon(t), new(sql.DB), "a", tick, func(context.Context, *sql.Tx) error { return nil }, once.Held(fence.First(&first))),
		"New of nil SQL":  func() error { _, err := once.New(&pglock.Client{}, fence.SQL((*sql.DB)(nil))); return err }(),
		"New of nil pool": func() error { _, err := once.New(&pglock.Client{}, (*pgxpool.Pool)(nil)); return err }(),
	} {
		wantErr(t, what, err, once.ErrInvalid)
	}
}

// The longest name of a job, and the instants at both ends, make names of locks that the database derives as well.
func TestTheLongestNamesAndTheFarthestInstants(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	runs := runner(t, d.URL, "a", d.Pool(t))
	for _, job := range []string{strings.Repeat("é", 100), "a/b", " ", "'; DROP TABLE x; --", "%s %I"} {
		for _, due := range []time.Time{
			time.Date(1, 1, 1, 0, 0, 0, 1000, time.UTC), time.Date(1969, 12, 31, 23, 59, 59, 999999999, time.UTC),
			time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC), time.Date(4321, 1, 2, 3, 4, 5, 678901000, time.UTC),
		} {
			wantErr(t, fmt.Sprintf("Run of %q, %v", job, due), runs.Run(soon(t), job, due, does(nil)), nil)
			rec, err := runs.Last(soon(t), job)
			if want := due.Truncate(time.Microsecond); err != nil || rec.Due.Before(want) {
				t.Errorf("on record of %q: %+v, %v, want %v", job, rec, err, want)
			}
		}
	}
}

// The lock of an occurrence is held alone, whatever the caller says.
func TestAnOccurrenceIsNotShared(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	runs := runner(t, d.URL, "a", d.Pool(t))
	for _, kind := range []pglock.Option{pglock.Shared(), pglock.Permits(2)} {
		wantErr(t, "Run", runs.Run(soon(t), "report", tick, nothing(t), once.Lease(kind)), once.ErrInvalid)
	}
	err := runs.Run(soon(t), "report", tick, func(ctx context.Context, _ *pglock.Lease) error {
		return runs.Run(ctx, "report", tick, nothing(t), once.Retry())
	})
	wantErr(t, "Run in f, which could only wait for itself", err, pglock.ErrReentrant)
}

// The records are in the schema of the client, whatever its name is.
func TestASchemaOfAnotherNameAndOneThatIsNotThere(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	pool := d.Pool(t)
	locks, err := pglock.New(pool, pglock.Config{Schema: "my locks"})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close(soon(t)) //nolint:errcheck // it holds nothing
	runs, err := once.New(locks, pool)
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, "Run", runs.Run(soon(t), "report", tick, nothing(t)), pglock.ErrNotMigrated)
	wantErr(t, "Up", migrations.Up(t.Context(), pool, migrations.Schema("my locks")), nil)
	wantErr(t, "Run", runs.Run(soon(t), "report", tick, does(nil)), nil)
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM "my locks".once WHERE lock = $1 AND outcome = 'done'`, lockName); n != 1 {
		t.Errorf("%d records in its schema", n)
	}
}

// A job is one job, and its record says what it said, whatever client_encoding the database of the records is reached with.
func TestAJobIsTheSameInEveryEncodingOfTheClient(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	cc, err := pgx.ParseConfig(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	cc.RuntimeParams["client_encoding"] = "LATIN1"
	db := stdlib.OpenDB(*cc)
	defer db.Close() //nolint:errcheck // of the test
	conn, err := pgx.ConnectConfig(t.Context(), cc)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background()) //nolint:errcheck // of the test
	why := errors.New("名")
	for i, records := range []fence.DB{conn, fence.SQL(db)} {
		runs := runner(t, d.URL, "用户", records)
		due := tick.AddDate(0, 0, i)
		wantErr(t, "Run", runs.Run(soon(t), "straße", due, does(why)), why)
		rec, err := runs.Last(soon(t), "straße")
		if err != nil || rec.Due != due || rec.Owner != "用户" || rec.Detail != "名" || rec.Outcome != once.Failed {
			t.Errorf("on record: %+v, %v", rec, err)
		}
		wantErr(t, "Run again", runner(t, d.URL, "b", d.Pool(t)).Run(soon(t), "straße", due, nothing(t)), once.ErrRan)
	}
}

// A database whose encoding lacks a character of the error keeps it in ASCII: the end is on record all the same.
func TestAFailureIsRecordedInADatabaseOfAnotherEncoding(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	name := d.Name + "_latin1"
	d.Exec(t, `CREATE DATABASE `+name+` ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0`)
	t.Cleanup(func() { d.Exec(t, `DROP DATABASE `+name+` WITH (FORCE)`) })
	pool, err := pgxpool.New(t.Context(), d.Server.URL(name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	wantErr(t, "Up", migrations.Up(soon(t), pool), nil)
	runs := runner(t, d.Server.URL(name), "a", pool)
	why := errors.New("名 é")
	wantErr(t, "Run", runs.Run(soon(t), "report", tick, does(why)), why)
	if rec := last(t, runs); rec.Outcome != once.Failed || rec.Detail != `"\u540d \u00e9"` {
		t.Errorf("on record: %+v", rec)
	}
}

// The pool of another database that has the schema too: nothing runs, and the error says what is wrong.
func TestARecordInAnotherDatabaseThanTheLockIsRefused(t *testing.T) {
	t.Parallel()
	locks, other := pgtest.DB(t), pgtest.DB(t)
	r := runner(t, locks.URL, "a", other.Pool(t))
	err := r.Run(soon(t), "report", tick, nothing(t))
	wantErr(t, "Run", err, fence.ErrElsewhere)
	if errors.Is(err, pglock.ErrLost) {
		t.Errorf("Run = %v: no lease was lost", err)
	}
}

// A locker can write a false record of what it does not run itself. A failure is told all the same.
func TestAFailureIsToldThoughSomebodyRecordedASuccess(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	broken := errors.New("broken")
	r := runner(t, d.URL, "a", d.Pool(t))
	err := r.Run(soon(t), "report", tick, func(_ context.Context, l *pglock.Lease) error {
		d.Exec(t, `SELECT pglock.once_end($1, $2, $3, 'done', '')`, "report", tick.UnixMicro(), int64(l.Token()))
		return broken
	})
	wantErr(t, "Run", err, broken)
	wantErr(t, "Run", err, once.ErrNotRecorded)
}

// A replica that has the lock may yet fail to begin: its pool reaches a server that only reads, say. The others, who ask meanwhile, do not
// take that for a run: one of them runs it, or the tick would be lost though they reach the database.
func TestATickIsNotLostByAReplicaThatCannotBegin(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	began := make(chan struct{})
	cut := &demoted{Pool: d.Pool(t), refuse: errors.New("no way through"), before: func(try int) {
		if try == 1 {
			close(began)
		}
	}}
	a, b := runner(t, d.URL, "a", cut), runner(t, d.URL, "b", d.Pool(t))
	ctx, cancel := context.WithCancel(soon(t))
	first := async(func() error { return a.Run(ctx, "report", tick, nothing(t)) })
	happens(t, "the first has the lock", began)

	short, over := context.WithTimeout(t.Context(), time.Second)
	defer over()
	err := b.Run(short, "report", tick, nothing(t))
	wantErr(t, "Run while it was not begun", err, context.DeadlineExceeded)
	if errors.Is(err, once.ErrRunning) || errors.Is(err, once.ErrRan) {
		t.Errorf("Run while it was not begun = %v", err)
	}

	second := async(func() error { return b.Run(soon(t), "report", tick, does(nil)) })
	cancel()
	wantErr(t, "the first", happens(t, "the first gives up", first), context.Canceled)
	wantErr(t, "the second", happens(t, "the second ends", second), nil)
	if rec := last(t, b); rec.Outcome != once.Done || rec.Owner != "b" || rec.Attempt != 1 {
		t.Errorf("on record: %+v", rec)
	}
}

// A slow is a pool whose answer to a statement comes late.
type slow struct {
	*pgxpool.Pool
	statement string
	late      func()
}

func (s *slow) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows, err := s.Pool.Query(ctx, sql, args...)
	if strings.Contains(sql, s.statement) {
		s.late()
	}
	return rows, err
}

// The answer that the attempt has begun comes when its lease is over: another may be at work by then, so f does not run.
func TestAnAttemptThatBeganTooLateDoesNotRun(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	db := &slow{d.Pool(t), "once_start", func() { d.WaitFor(t, `SELECT NOT held FROM pglock.holder($1)`, lockName) }}
	a, b := runner(t, d.URL, "a", db), runner(t, d.URL, "b", d.Pool(t))
	err := a.Run(soon(t), "report", tick, nothing(t), once.Lease(pglock.TTL(2*time.Second), pglock.NoRenewal()))
	wantErr(t, "Run", err, pglock.ErrLost)
	if rec := last(t, b); rec.Outcome != once.Failed || rec.Detail == "" {
		t.Errorf("on record: %+v", rec)
	}
	wantErr(t, "Run with Retry", b.Run(soon(t), "report", tick, does(nil), once.Retry()), nil)
}

// The lease is over while the end is being recorded. f had returned before that, so it is no loss that anybody need hear of.
func TestALeaseThatEndsAfterTheWorkIsNoLoss(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	const over = `SELECT NOT EXISTS (SELECT FROM pglock.leases WHERE expires_at > clock_timestamp())`
	db := &slow{d.Pool(t), "once_end", func() { d.WaitFor(t, over) }}
	a := runner(t, d.URL, "a", db)
	short := once.Lease(pglock.TTL(2*time.Second), pglock.NoRenewal())
	wantErr(t, "Run", a.Run(soon(t), "report", tick, does(nil), short), nil)
	next := tick.Add(time.Second)
	wantErr(t, "Tx", a.Tx(soon(t), lateCommits{db}, "report", next, func(context.Context, pgx.Tx) error { return nil }, short), nil)
	if done, err := a.History(soon(t), "report", 3); err != nil || len(done) != 2 || done[0].Outcome != once.Done || done[1].Outcome != once.Done {
		t.Errorf("on record: %+v, %v", done, err)
	}
}

// lateCommits begins transactions whose commits are answered late.
type lateCommits struct{ *slow }

type lateCommit struct {
	pgx.Tx
	late func()
}

func (l lateCommits) BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error) {
	tx, err := l.Pool.BeginTx(ctx, o)
	return lateCommit{tx, l.late}, err
}

func (c lateCommit) Commit(ctx context.Context) error {
	err := c.Tx.Commit(ctx)
	c.late()
	return err
}

// A record that is not there any more cannot be ended, however often it is tried.
func TestARecordThatIsGoneIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	tries := 0
	a := runner(t, d.URL, "a", &slow{d.Pool(t), "once_end", func() { tries++ }})
	err := a.Run(soon(t), "report", tick, func(context.Context, *pglock.Lease) error {
		d.Exec(t, `DELETE FROM pglock.occurrences`)
		return nil
	})
	wantErr(t, "Run", err, once.ErrNotRecorded)
	if tries != 1 {
		t.Errorf("its end was tried to be recorded %d times", tries)
	}
}
