package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// transactions are those that take First.
var transactions = map[string]func(context.Context, fence.Beginner, fence.Grant, func(pgx.Tx) error, ...fence.Option) error{
	"Tx": func(ctx context.Context, db fence.Beginner, g fence.Grant, f func(pgx.Tx) error, opts ...fence.Option) error {
		return fence.Tx(ctx, db, g, "ledger", f, opts...)
	},
	"HeldTx": func(ctx context.Context, db fence.Beginner, g fence.Grant, f func(pgx.Tx) error, opts ...fence.Option) error {
		if f == nil {
			return fence.HeldTx(ctx, db, g, nil, opts...)
		}
		return fence.HeldTx(ctx, db, g, func(_ context.Context, tx pgx.Tx) error { return f(tx) }, opts...)
	},
	"StatedTx": fence.StatedTx,
}

// execModes are the ways in which pgx sends a batch.
var execModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}

// batch writes the status of invoice 1.
func batch(status string) *pgx.Batch {
	var b pgx.Batch
	b.Queue(`UPDATE invoices SET status = $1 WHERE id = 1`, status)
	return &b
}

// beginners are what transactions are begun on: some of them can send a batch with BEGIN.
func beginners(t *testing.T, d *pgtest.Database) map[string]fence.Beginner {
	t.Helper()
	pool := d.Pool(t)
	pooled, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pooled.Release)
	return map[string]fence.Beginner{
		"a pool": pool, "a connection": d.Conn(t), "a pool's connection": pooled, "something else": struct{ fence.Beginner }{pool},
	}
}

// fencedInvoices has invoice 1, which only later grants than 5 may write, whichever way; 7 holds the lock.
func fencedInvoices(t *testing.T) *pgtest.Database {
	t.Helper()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices+`; INSERT INTO invoices VALUES (1, 'old', 0); SELECT pglock.protect('invoices');
		INSERT INTO pglock.leases (name, token, expires_at) VALUES ('billing', 7, clock_timestamp() + interval '1 h');
		BEGIN; SELECT pglock.fence_raise('ledger', 'billing', 0, 6); UPDATE invoices SET status = 'later'; COMMIT`)
	return d
}

func TestFirstIsWrittenAndThenFRuns(t *testing.T) {
	t.Parallel()
	d := fencedInvoices(t)
	ctx := bounded(t)
	n := 0
	for what, db := range beginners(t, d) {
		for how, run := range transactions {
			n++
			status := fmt.Sprint("written ", n)
			b := batch(status)
			var seen []string
			b.Queue(`SELECT status FROM invoices WHERE id = 1`).QueryRow(func(row pgx.Row) error {
				seen = append(seen, "")
				return row.Scan(&seen[0])
			})
			wantErr(t, what+": "+how, run(ctx, db, grant(7), func(tx pgx.Tx) error {
				if len(seen) != 1 {
					t.Errorf("%s, %s: f ran before the answers were there", what, how)
				}
				_, err := tx.Exec(ctx, `UPDATE invoices SET status = status || ', f ran' WHERE id = 1`)
				return err
			}, fence.First(b)), nil)
			if want := []string{status}; fmt.Sprint(seen) != fmt.Sprint(want) {
				t.Errorf("%s, %s: the batch saw %q, want %q", what, how, seen, want)
			}
			if got, want := state(t, d), status+", f ran 0"; got != want {
				t.Errorf("%s, %s: the row is %q, want %q", what, how, got, want)
			}
			b = batch(status)
			wantErr(t, what+": "+how+" without f", run(ctx, db, grant(7), nil, fence.First(b)), nil)
			wantErr(t, what+": "+how+" once more, elsewhere", run(ctx, d.Conn(t), grant(7), nil, fence.First(b)), nil)
			if got, want := state(t, d), status+" 0"; got != want {
				t.Errorf("%s, %s: the row is %q, want %q", what, how, got, want)
			}
		}
	}
}

// Neither the batch's functions nor f are called, nothing is written, and the connection can be used.
func TestFirstOfAStaleGrantIsRefused(t *testing.T) {
	t.Parallel()
	d := fencedInvoices(t)
	ctx := bounded(t)
	for what, db := range beginners(t, d) {
		for how, run := range transactions {
			told := 0
			g := grant(5).OnStale(func(error) { told++ })
			b := batch("stale")
			b.Queue(`SELECT 1`).Exec(func(pgconn.CommandTag) error { t.Errorf("%s, %s: the batch was answered", what, how); return nil })
			err := run(ctx, db, g, func(pgx.Tx) error { t.Errorf("%s, %s: f ran", what, how); return nil }, fence.First(b))
			wantErr(t, what+": "+how, err, fence.ErrStale)
			if told != 1 {
				t.Errorf("%s, %s: the lease was told %d times", what, how, told)
			}
			if got := state(t, d); got != "later 0" {
				t.Fatalf("%s, %s: the row is %q", what, how, got)
			}
			if conn, ok := db.(*pgx.Conn); ok && (conn.IsClosed() || conn.PgConn().TxStatus() != 'I') {
				t.Fatalf("%s: the connection is closed or in a transaction", how)
			}
		}
	}
}

func TestFirstThatFailsIsRolledBack(t *testing.T) {
	t.Parallel()
	d := fencedInvoices(t)
	ctx := bounded(t)
	failure := errors.New("one row was expected")
	for what, db := range beginners(t, d) {
		for how, run := range transactions {
			ran := func(pgx.Tx) error { t.Errorf("%s, %s: f ran", what, how); return nil }
			b := batch("new")
			b.Queue(`UPDATE invoices SET status = 'new' WHERE id = 2`).Exec(func(pgconn.CommandTag) error { return failure })
			wantErr(t, what+": "+how+", a function of the batch", run(ctx, db, grant(7), ran, fence.First(b)), failure)

			b = batch("new")
			b.Queue(`SELECT 1 / (SELECT count(*) FROM invoices WHERE id = 2)`)
			if err := run(ctx, db, grant(7), ran, fence.First(b)); sqlState(err) != "22012" {
				t.Errorf("%s, %s: %v, want 22012", what, how, err)
			}
			b = batch("new")
			b.Queue(`no SQL`)
			if err := run(ctx, db, grant(7), ran, fence.First(b)); sqlState(err) != "42601" {
				t.Errorf("%s, %s: %v, want 42601", what, how, err)
			}
			wantErr(t, what+": "+how+", f", run(ctx, db, grant(7), func(pgx.Tx) error { return failure }, fence.First(batch("new"))), failure)
			if got := state(t, d); got != "later 0" {
				t.Fatalf("%s, %s: the row is %q", what, how, got)
			}
		}
	}
}

// A panic leaves answers unread.
func TestFirstWhoseFunctionPanicsIsRolledBack(t *testing.T) {
	t.Parallel()
	d := fencedInvoices(t)
	ctx := bounded(t)
	for how, run := range transactions {
		func() {
			defer func() {
				if p := recover(); p != "boom" {
					t.Errorf("%s: recovered %v", how, p)
				}
			}()
			b := batch("new")
			b.QueuedQueries[0].Exec(func(pgconn.CommandTag) error { panic("boom") })
			_ = run(ctx, d.Pool(t), grant(7), nil, fence.First(b))
		}()
	}
	d.WaitFor(t, `SELECT NOT EXISTS (SELECT FROM pg_locks WHERE relation = 'invoices'::regclass AND mode = 'RowExclusiveLock')`)
	if got := state(t, d); got != "later 0" {
		t.Errorf("the row is %q", got)
	}
}

// An argument ends the call before the batch is sent, or in the midst of it.
type argument func()

func (end argument) RewriteQuery(context.Context, *pgx.Conn, string, []any) (string, []any, error) {
	end()
	return "", nil, nil
}

func (end argument) TextValue() (pgtype.Text, error) {
	end()
	return pgtype.Text{}, nil
}

// The pool has its connection again, and a connection is not left in the middle of a message.
func TestFirstThatPanicsWhileItIsSent(t *testing.T) {
	t.Parallel()
	d := fencedInvoices(t)
	for _, mode := range execModes {
		cfg, err := pgxpool.ParseConfig(d.URL)
		if err != nil {
			t.Fatal(err)
		}
		cfg.MaxConns, cfg.ConnConfig.DefaultQueryExecMode = 1, mode
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if !t.Failed() { // it would wait for the connection
				pool.Close()
			}
		}()
		for how, end := range map[string]argument{"a panic": func() { panic("boom") }, "an exit": runtime.Goexit} {
			for where, arg := range map[string]any{"a rewriter": end, "an encoder": struct{ pgtype.TextValuer }{end}} {
				conn, err := pgx.ConnectConfig(t.Context(), cfg.ConnConfig)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close(context.Background()) })
				for what, db := range map[string]fence.Beginner{"a pool": pool, "a connection": conn} {
					b := batch("new")
					b.Queue(`UPDATE invoices SET status = $1`, arg)
					ended := make(chan struct{})
					go func() {
						defer close(ended)
						defer func() { _ = recover() }()
						_ = fence.Tx(bounded(t), db, grant(7), "ledger", nil, fence.First(b))
						t.Errorf("%v: %s in %s returned", mode, how, where)
					}()
					<-ended
					if err := pool.Ping(bounded(t)); err != nil {
						t.Fatalf("%v: after %s in %s the pool has no connection: %v", mode, how, where, err)
					}
					if conn.PgConn().IsBusy() {
						t.Errorf("%v: after %s in %s, %s is busy", mode, how, where, what)
					}
				}
			}
		}
	}
	if got := state(t, d); got != "later 0" {
		t.Errorf("the row is %q", got)
	}
}

func TestFirstThatCannotBeMeant(t *testing.T) {
	t.Parallel()
	d := fencedInvoices(t)
	ctx, pool, conn := bounded(t), d.Pool(t), d.Conn(t)
	std := stdlib.OpenDBFromPool(pool)
	defer std.Close() //nolint:errcheck // of the pool
	var begins pgx.Batch
	begins.BeginTx(pgx.TxOptions{IsoLevel: pgx.Serializable})
	for how, run := range transactions {
		wantErr(t, how+": nil", run(ctx, pool, grant(7), nothing, fence.First(nil)), fence.ErrInvalid)
		wantErr(t, how+": empty", run(ctx, pool, grant(7), nil, fence.First(&pgx.Batch{})), fence.ErrInvalid)
		wantErr(t, how+": empty, and f", run(ctx, pool, grant(7), nothing, fence.First(&pgx.Batch{})), nil)
		wantErr(t, how+": twice", run(ctx, pool, grant(7), nothing, fence.First(batch("x")), fence.First(batch("y"))), fence.ErrInvalid)
		wantErr(t, how+": a batch that begins", run(ctx, pool, grant(7), nothing, fence.First(&begins)), fence.ErrInvalid)
		wantErr(t, how+": nothing", run(ctx, pool, grant(7), nil), fence.ErrInvalid)
	}
	tx := begin(t, conn, pgx.ReadCommitted)
	defer rollback(t, tx)
	for how, run := range transactions {
		wantErr(t, how+": in a transaction", run(ctx, conn, grant(7), nil, fence.First(batch("x"))), fence.ErrInvalid)
	}
	wantErr(t, "Raise", fence.Raise(ctx, tx, grant(7), "ledger", fence.First(batch("x"))), fence.ErrInvalid)
	wantErr(t, "Hold", fence.Hold(ctx, tx, grant(7), fence.First(batch("x"))), fence.ErrInvalid)
	wantErr(t, "Update", invoices.Update(ctx, pool, grant(7), invoice(1, "x"), fence.First(batch("x"))), fence.ErrInvalid)
	wantErr(t, "database/sql", fence.TxSQL(ctx, std, grant(7), "ledger", func(*sql.Tx) error { return nil }, fence.First(batch("x"))), fence.ErrInvalid)
}

func TestFirstKeepsTheIsolationLevel(t *testing.T) {
	t.Parallel()
	d := fencedInvoices(t)
	pool := d.Pool(t)
	for _, level := range levels {
		for how, run := range transactions {
			var got string
			var b pgx.Batch
			b.Queue(`SELECT current_setting('transaction_isolation')`).QueryRow(func(row pgx.Row) error { return row.Scan(&got) })
			wantErr(t, how, run(bounded(t), pool, grant(7), nil, fence.First(&b), fence.Isolation(level)), nil)
			if got != string(level) {
				t.Errorf("%s: isolation %q, want %q", how, got, level)
			}
		}
	}
}

// In every way in which pgx can send a batch, and where the session's encoding could make other names of these.
func TestFirstInEveryExecMode(t *testing.T) {
	t.Parallel()
	d := fencedInvoices(t)
	d.Exec(t, `CREATE TABLE plain (n int); INSERT INTO pglock.leases (name, token, expires_at) VALUES ('Müller''s\ "1"', 9, clock_timestamp() + interval '1 h')`)
	for _, mode := range execModes {
		cfg, err := pgxpool.ParseConfig(d.URL)
		if err != nil {
			t.Fatal(err)
		}
		cfg.ConnConfig.DefaultQueryExecMode = mode
		if mode != pgx.QueryExecModeSimpleProtocol { // which pgx has for UTF8 only
			cfg.ConnConfig.RuntimeParams["client_encoding"] = "LATIN1"
		}
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		for how, run := range transactions {
			for range 2 { // the second time with what was prepared
				wantErr(t, fmt.Sprint(mode, " ", how), run(bounded(t), pool, grant(7), nil, fence.First(batch(how))), nil)
				stale := batch("stale")
				called := func(pgx.Row) error { t.Errorf("%v, %s: a function was called", mode, how); return nil }
				if how != "StatedTx" { // which refuses the write itself
					stale.QueuedQueries[0].QueryRow(called)
				}
				stale.Queue(`SELECT 1`).QueryRow(called)
				wantErr(t, fmt.Sprint(mode, " ", how, ", stale"), run(bounded(t), pool, grant(5), nil, fence.First(stale)), fence.ErrStale)
			}
		}
		bad := batch("bad")
		bad.Queue(`UPDATE invoices SET status = $1 WHERE id = 1`, make(chan int))
		if err := fence.HeldTx(bounded(t), pool, grant(7), nil, fence.First(bad)); err == nil || errors.Is(err, fence.ErrCommitUnknown) {
			t.Errorf("%v with an argument that does not fit = %v, want an error, and a known outcome", mode, err)
		}
		odd := fence.Grant{Lock: `Müller's\ "1"`, Token: 9}
		var b, c pgx.Batch
		b.Queue(`INSERT INTO plain VALUES (1)`)
		c.Queue(`INSERT INTO plain VALUES (1)`)
		wantErr(t, fmt.Sprint(mode, " Tx"), fence.Tx(bounded(t), pool, odd, `a"'\ä`, nil, fence.First(&b), fence.Also("b", `'`)), nil)
		wantErr(t, fmt.Sprint(mode, " HeldTx"), fence.HeldTx(bounded(t), pool, odd, nil, fence.First(&c)), nil)
		const raised = `SELECT count(*) FROM pglock.fences WHERE resource IN ('a"''\ä', 'b', '''') AND name = 'Müller''s\ "1"'`
		if n, rows := pgtest.Query[int](t, d, raised), pgtest.Query[int](t, d, `SELECT count(*) FROM plain`); n != 3 || rows != 2 {
			t.Errorf("%v: %d fences of those names, %d rows, want 3 and 2", mode, n, rows)
		}
		d.Exec(t, `DELETE FROM pglock.fences WHERE name LIKE 'M%'; TRUNCATE plain`)
	}
}

// One round trip where that is all of the transaction, and two where its answers have a say in the commit: a transaction without a fence
// takes three. Under another grant too, and nothing is prepared anew.
func TestFirstTakesOneRoundTripOrTwo(t *testing.T) {
	t.Parallel()
	d := fencedInvoices(t)
	p := pgtest.NewProxy(t, d)
	conn, err := pgx.Connect(t.Context(), p.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for how, run := range transactions {
		for token := range fence.Token(3) {
			d.Exec(t, `UPDATE pglock.leases SET token = $1`, 7+int64(token))
			judged := batch("new")
			judged.QueuedQueries[0].Exec(func(pgconn.CommandTag) error { return nil })
			for want, call := range map[string]func() error{
				"1": func() error { return run(bounded(t), conn, grant(7+token), nil, fence.First(batch("new"))) },
				"2": func() error { return run(bounded(t), conn, grant(7+token), nil, fence.First(judged)) },
			} {
				before := p.Counts()
				wantErr(t, how, call(), nil)
				if n := p.Counts().Since(before).RoundTrips(); token > 0 && fmt.Sprint(n) != want {
					t.Errorf("%s took %d round trips, want %s", how, n, want)
				}
			}
		}
		d.Exec(t, `BEGIN; UPDATE pglock.leases SET token = 7; DELETE FROM pglock.fences WHERE resource <> ''; COMMIT`)
	}
}

// A connection whose answer was lost is not a refusal, nor is it used again.
func TestFirstWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	d := fencedInvoices(t)
	p := pgtest.NewProxy(t, d)
	cfg, err := pgxpool.ParseConfig(p.URL())
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for how, run := range transactions {
		wantErr(t, how, run(bounded(t), pool, grant(7), nil, fence.First(batch("seen"))), nil)
		lost := p.LoseNextReply("the lost one")
		err := run(bounded(t), pool, grant(7), func(pgx.Tx) error { t.Errorf("%s: f ran", how); return nil }, fence.First(batch("the lost one")))
		if err == nil || errors.Is(err, fence.ErrStale) || errors.Is(err, fence.ErrCommitUnknown) {
			t.Errorf("%s without an answer = %v; want an error that says neither stale nor unknown: nothing was committed", how, err)
		}
		<-lost
		wantErr(t, how+" afterwards", run(bounded(t), pool, grant(7), nil, fence.First(batch("seen"))), nil)
		if got := state(t, d); got != "seen 0" {
			t.Errorf("%s: the row is %q", how, got)
		}
	}
}

// The answer to a batch that is all of its transaction is the answer to the commit as well.
func TestTheWholeTransactionIsFirst(t *testing.T) {
	t.Parallel()
	d := fencedInvoices(t)
	d.Exec(t, `CREATE TABLE paid (id int REFERENCES invoices DEFERRABLE INITIALLY DEFERRED)`)
	p := pgtest.NewProxy(t, d)
	for how, run := range transactions {
		conn, err := pgx.Connect(t.Context(), p.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		refused := batch("refused at the commit")
		refused.Queue(`INSERT INTO paid VALUES (2)`)
		err = run(bounded(t), conn, grant(7), nil, fence.First(refused))
		if sqlState(err) != "23503" || errors.Is(err, fence.ErrCommitUnknown) {
			t.Errorf("%s = %v, want 23503 and a known outcome", how, err)
		}
		if conn.IsClosed() || conn.PgConn().TxStatus() != 'I' || state(t, d) != "later 0" {
			t.Errorf("%s: the row is %q; is the connection closed: %v", how, state(t, d), conn.IsClosed())
		}
		wantErr(t, how, run(bounded(t), conn, grant(7), nil, fence.First(batch("seen"))), nil)
		if got := state(t, d); got != "seen 0" {
			t.Errorf("%s: the row is %q", how, got)
		}
		lost := p.LoseNextReply("the lost one")
		wantErr(t, how+" without an answer", run(bounded(t), conn, grant(7), nil, fence.First(batch("the lost one"))), fence.ErrCommitUnknown)
		<-lost
		if got := state(t, d); got != "the lost one 0" {
			t.Errorf("%s: the row is %q", how, got)
		}
		d.Exec(t, `BEGIN; SELECT pglock.fence_state('billing', 0, 7); UPDATE invoices SET status = 'later'; COMMIT`)
	}
}

// A commit whose answer did not come says what ended the wait for it: a lease that was lost, say.
func TestTheWholeTransactionTellsWhyItsContextEnded(t *testing.T) {
	t.Parallel()
	d := fencedInvoices(t)
	lost := errors.New("the lease was lost")
	for how, run := range transactions {
		for what, answers := range map[string]int{"nothing was answered": 1, "some was": 100_000} { // which the server keeps to itself while they are short
			locked := begin(t, d.Conn(t), pgx.ReadCommitted)
			exec(t, locked, `SELECT FROM invoices FOR UPDATE`)
			var b pgx.Batch
			b.Queue(`SELECT repeat('x', $1)`, answers)
			b.Queue(`UPDATE invoices SET status = 'new'`)
			conn := d.Conn(t)
			ctx, cancel := context.WithCancelCause(bounded(t))
			waits := waiting(t, d, func() error { return run(ctx, conn, grant(7), nil, fence.First(&b)) })
			cancel(lost)
			err := <-waits
			wantErr(t, how+" of which "+what, err, fence.ErrCommitUnknown)
			wantErr(t, how+" of which "+what, err, lost)
			rollback(t, locked)
		}
	}
}

// What would end the transaction is refused where it can be seen: what comes after it would be under no fence.
func TestFirstThatEndsTheTransaction(t *testing.T) {
	t.Parallel()
	d := fencedInvoices(t)
	conn := d.Conn(t)
	if _, err := conn.Prepare(t.Context(), "end-of-day", `SELECT 1`); err != nil {
		t.Fatal(err)
	}
	for sql, want := range map[string]error{
		"COMMIT": fence.ErrInvalid, " end;": fence.ErrInvalid, "Abort": fence.ErrInvalid, "rollback and chain": fence.ErrInvalid,
		"PREPARE  TRANSACTION 'x'": fence.ErrInvalid, "SAVEPOINT a": nil, "ROLLBACK TO a": nil, "rollback work to savepoint a": nil,
		"/* tenant 7 **/ ROLLBACK": fence.ErrInvalid, "-- name: Done :exec\nCOMMIT": fence.ErrInvalid, ";commit": fence.ErrInvalid,
		"/* a */ rollback to\"a\"": nil, "-- commit\nSELECT 1": nil, "/* end */ SELECT '*/ end '": nil, "end-of-day": nil,
	} {
		for how, run := range transactions {
			b := batch("written")
			b.Queue(`SAVEPOINT a`)
			b.Queue(sql)
			wantErr(t, how+" with "+sql, run(bounded(t), conn, grant(7), nil, fence.First(b)), want)
		}
	}
}
