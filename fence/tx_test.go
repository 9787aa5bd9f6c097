package fence_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// pay writes invoice 1 by plain SQL.
func pay(tx pgx.Tx) error {
	_, err := tx.Exec(context.Background(), `INSERT INTO invoices VALUES (1, 'paid') ON CONFLICT (id) DO UPDATE SET status = 'paid again'`)
	return err
}

func TestTxCommitsUnderTheFence(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	pool := d.Pool(t)
	ctx := t.Context()
	wantErr(t, "Tx", fence.Tx(ctx, pool, grant(5), "report", pay), nil)
	wantErr(t, "the same grant", fence.Tx(ctx, pool, grant(5), "report", pay), nil)
	reports := 0
	ran := false
	earlier := grant(4).OnStale(func(error) { reports++ })
	wantStale(t, "earlier", fence.Tx(ctx, pool, earlier, "report", func(pgx.Tx) error { ran = true; return nil }), 5)
	if ran || reports != 1 {
		t.Errorf("stale: f ran: %v; the lease was told %d times", ran, reports)
	}
	if got := state(t, d); got != "paid again 0" {
		t.Errorf("the row is %q", got)
	}
}

// A pool's transactions of one grant take a short way, which is as strict: the fence is of one lock and slot, and the grant is stated.
func TestTheShortWayOfAPoolIsAsStrict(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices+`; SELECT pglock.protect('invoices');
		INSERT INTO pglock.leases (name, token, expires_at) VALUES ('billing', 7, clock_timestamp() + interval '1 h')`)
	pool := d.Pool(t)
	ctx := bounded(t)
	for range 2 { // the first time raises the fence
		wantErr(t, "Tx", fence.Tx(ctx, pool, grant(7), "ledger", pay), nil)
	}
	wantErr(t, "HeldTx", fence.HeldTx(ctx, pool, grant(7), func(_ context.Context, tx pgx.Tx) error { return pay(tx) }), nil)
	wantErr(t, "another lock", fence.Tx(ctx, pool, fence.Grant{Lock: "other", Token: 7}, "ledger", nothing), fence.ErrOtherLock)
	wantErr(t, "another slot", fence.Tx(ctx, pool, fence.Grant{Lock: "billing", Slot: 1, Token: 7}, "ledger", nothing), fence.ErrOtherLock)
}

// What began on the connection before is its owner's to commit.
func TestTxRefusesAConnectionThatIsInATransaction(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	ctx, pool := t.Context(), d.Pool(t)
	pooled, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer pooled.Release()
	id := 0
	for what, conn := range map[string]interface {
		fence.Beginner
		Begin(context.Context) (pgx.Tx, error)
	}{"a connection": d.Conn(t), "a pool's": pooled} {
		tx, err := conn.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		id++
		exec(t, tx, fmt.Sprintf(`INSERT INTO invoices VALUES (%d, 'mine')`, id))
		ran := func(pgx.Tx) error { t.Errorf("%s: it ran", what); return nil }
		wantErr(t, what+": Tx", fence.Tx(ctx, conn, grant(7), "ledger", ran), fence.ErrInvalid)
		wantErr(t, what+": StatedTx", fence.StatedTx(ctx, conn, grant(7), ran), fence.ErrInvalid)
		wantErr(t, what+": HeldTx", fence.HeldTx(ctx, conn, grant(7), func(_ context.Context, tx pgx.Tx) error { return ran(tx) }), fence.ErrInvalid)
		if n := pgtest.Query[int](t, d, `SELECT count(*) FROM invoices`); n != id-1 {
			t.Errorf("%s: %d rows before the commit", what, n)
		}
		commit(t, tx)
		if n := pgtest.Query[int](t, d, `SELECT count(*) FROM invoices`); n != id {
			t.Errorf("%s: %d rows after the commit", what, n)
		}
		wantErr(t, what+": afterwards", fence.Tx(ctx, conn, grant(7), "ledger", nothing), nil)
	}

	broken := d.Conn(t)
	begin(t, broken, pgx.ReadCommitted)
	if err := broken.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if err := fence.Tx(ctx, broken, grant(7), "ledger", nothing); err == nil || errors.Is(err, fence.ErrInvalid) {
		t.Errorf("a connection that was closed in a transaction: %v, want an error that does not say it is in one", err)
	}
}

func TestTxRollsBack(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	conn := d.Conn(t)
	failure := errors.New("no money")
	ends := map[string]func(pgx.Tx) error{
		"error": func(tx pgx.Tx) error { return errors.Join(pay(tx), failure) },
		"panic": func(tx pgx.Tx) error { _ = pay(tx); panic("boom") },
		"exit":  func(tx pgx.Tx) error { _ = pay(tx); runtime.Goexit(); return nil },
	}
	for name, f := range ends {
		done := make(chan any, 1)
		go func() {
			var err error
			defer func() {
				if p := recover(); p != nil {
					done <- p
				} else {
					done <- err
				}
			}()
			err = fence.Tx(t.Context(), conn, grant(5), "report", f)
		}()
		switch got := <-done; name {
		case "error":
			if err, _ := got.(error); !errors.Is(err, failure) {
				t.Errorf("Tx = %v, want f's error", err)
			}
		case "panic":
			if got != "boom" {
				t.Errorf("recovered %v, want f's panic", got)
			}
		}
		if conn.PgConn().TxStatus() != 'I' {
			t.Errorf("%s: the transaction is open", name)
		}
		if got := state(t, d); got != "none" || lastOf(t, d) != 0 {
			t.Errorf("%s: the row is %q, the fence at %d; want nothing", name, got, lastOf(t, d))
		}
	}
}

// The connection is the caller's, and stays usable.
func TestTxWhoseContextEndsInF(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	conn := d.Conn(t)
	ctx, cancel := context.WithCancel(t.Context())
	err := fence.Tx(ctx, conn, grant(5), "report", func(tx pgx.Tx) error { cancel(); return errors.Join(pay(tx), ctx.Err()) })
	wantErr(t, "Tx", err, context.Canceled)
	if conn.IsClosed() || conn.PgConn().TxStatus() != 'I' {
		t.Error("the connection is closed or in a transaction")
	}
	err = fence.Tx(ctx, conn, grant(5), "report", func(pgx.Tx) error { return nil })
	wantErr(t, "Tx with a ctx that is over", err, context.Canceled)
	if got := state(t, d); got != "none" {
		t.Errorf("the row is %q", got)
	}
}

// Where f swallows that its ctx ended, the commit is never sent: that outcome is known.
func TestCommitThatWasNeverSentIsKnown(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	ctx, cancel := context.WithCancel(t.Context())
	err := fence.Tx(ctx, d.Conn(t), grant(5), "report", func(pgx.Tx) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) || errors.Is(err, fence.ErrCommitUnknown) {
		t.Errorf("Tx = %v, want Canceled alone", err)
	}
}

func TestTxIsolation(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	conn := d.Conn(t)
	for _, level := range append(levels, pgx.ReadUncommitted) {
		var got string
		err := fence.Tx(t.Context(), conn, grant(5), "report", func(tx pgx.Tx) error {
			return tx.QueryRow(t.Context(), `SHOW transaction_isolation`).Scan(&got)
		}, fence.Isolation(level))
		if err != nil || got != string(level) {
			t.Errorf("isolation %q, %v, want %q", got, err, level)
		}
	}
}

// Rows may be fenced inside a fenced transaction; what they refuse does not commit.
func TestRowFenceInsideTx(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices+`; INSERT INTO invoices VALUES (1, 'old', 9)`)
	reports := 0
	g := grant(5).OnStale(func(error) { reports++ })
	err := fence.Tx(t.Context(), d.Conn(t), g, "report", func(tx pgx.Tx) error {
		return invoices.Update(t.Context(), tx, g, invoice(1, "late"))
	})
	wantStale(t, "Tx", err, 9)
	if reports != 1 || lastOf(t, d) != 0 {
		t.Errorf("the lease was told %d times, the fence is at %d", reports, lastOf(t, d))
	}
}

// A refusal at the commit is an answer; a connection that breaks there is none.
func TestCommitWithoutAnAnswerIsUnknown(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices+`; CREATE TABLE paid (id int REFERENCES invoices DEFERRABLE INITIALLY DEFERRED)`)
	err := fence.Tx(t.Context(), d.Conn(t), grant(5), "report", func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `INSERT INTO paid VALUES (7)`)
		return err
	})
	if sqlState(err) != "23503" || errors.Is(err, fence.ErrCommitUnknown) {
		t.Errorf("refused: %v, want 23503 and a known outcome", err)
	}
	err = fence.Tx(t.Context(), d.Conn(t), grant(5), "report", func(tx pgx.Tx) error {
		_, _ = tx.Exec(t.Context(), `SELECT 1/0`)
		return nil
	})
	if !errors.Is(err, pgx.ErrTxCommitRollback) || errors.Is(err, fence.ErrCommitUnknown) {
		t.Errorf("aborted: %v, want ErrTxCommitRollback", err)
	}

	proxy := pgtest.NewProxy(t, d)
	for name, lay := range map[string]func(string) <-chan struct{}{"reply": proxy.LoseNextReply, "request": proxy.LoseNextRequest} {
		d.Exec(t, `TRUNCATE invoices CASCADE`)
		conn, err := pgx.Connect(t.Context(), proxy.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		sprung := lay("commit")
		err = fence.Tx(t.Context(), conn, grant(5), "report", pay)
		wantErr(t, "lost "+name, err, fence.ErrCommitUnknown)
		<-sprung
		want := map[string]string{"reply": "paid 0", "request": "none"}[name]
		if got := state(t, d); got != want {
			t.Errorf("lost %s: the row is %q, want %q", name, got, want)
		}
	}
}

// A lost reply of a row write is settled by sending it again.
func TestLostReplyOfARowWrite(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	proxy := pgtest.NewProxy(t, d)
	conn, err := pgx.Connect(t.Context(), proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	for id := range 2 { // until the statement is prepared, so that there is one reply to lose
		wantErr(t, "warm-up", invoices.Insert(t.Context(), conn, grant(5), invoice(2+id, "x")), nil)
	}
	sprung := proxy.LoseNextReply("the lost one")
	if err := invoices.Insert(t.Context(), conn, grant(5), invoice(1, "the lost one")); err == nil {
		t.Error("a lost reply came as success")
	}
	<-sprung
	wantErr(t, "sent again", invoices.Insert(t.Context(), d.Conn(t), grant(5), invoice(1, "the lost one")), fence.ErrAlreadyWritten)
}

// What f, or the batch that is first, does after the end of its transaction is under no fence.
func TestATransactionThatWasEndedWithinIsToldSo(t *testing.T) {
	t.Parallel()
	d := fencedInvoices(t)
	ctx := bounded(t)
	ends := map[string]func(pgx.Tx) error{
		"SQL":    func(tx pgx.Tx) error { _, err := tx.Exec(ctx, `COMMIT`); return err },
		"Commit": func(tx pgx.Tx) error { return tx.Commit(ctx) },
	}
	for what, db := range beginners(t, d) {
		for how, run := range transactions {
			for by, end := range ends {
				if err := run(ctx, db, grant(7), end); err == nil || !strings.Contains(err.Error(), "f has ended") {
					t.Errorf("%s on %s, ended by %s = %v, want an error that says it", how, what, by, err)
				}
			}
		}
	}
}

// Over the simple protocol a text can be several statements, of which only the first is looked at.
func TestABatchThatHasEndedItsTransactionIsToldSo(t *testing.T) {
	t.Parallel()
	d := fencedInvoices(t)
	cfg, err := pgxpool.ParseConfig(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for how, run := range transactions {
		b := batch("written")
		b.Queue(`SELECT 1; COMMIT`)
		if err := run(bounded(t), pool, grant(7), nothing, fence.First(b)); err == nil || !strings.Contains(err.Error(), "the batch has ended") {
			t.Errorf("%s = %v, want an error that says it", how, err)
		}
	}
}

// The context of a lease that was lost says so, and the error of a commit that could not be sent for it says so too.
func TestACommitThatWasNotSentSaysWhyItsContextEnded(t *testing.T) {
	t.Parallel()
	d := fencedInvoices(t)
	lost := errors.New("the lease was lost")
	for how, run := range transactions {
		ctx, cancel := context.WithCancelCause(bounded(t))
		wantErr(t, how, run(ctx, d.Pool(t), grant(7), func(pgx.Tx) error { cancel(lost); return nil }), lost)
	}
}
