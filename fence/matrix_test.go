package fence_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// A protection is a way to write invoice 1 under a grant, in a transaction of the caller's, or as the first that one of its own does.
type protection struct {
	first func(ctx context.Context, db fence.Beginner, g fence.Grant, f func() error, opts ...fence.Option) error
	write func(ctx context.Context, tx pgx.Tx, g fence.Grant) error
	rival func(ctx context.Context, tx pgx.Tx, g fence.Grant) error // if it writes otherwise
	setup string
	early func(ctx context.Context, tx pgx.Tx, g fence.Grant) error // what the writer has committed before
	held  bool                                                      // no later grant is made while the writer's transaction is open
}

// plainly writes invoice 1 as anybody could.
func plainly(ctx context.Context, tx pgx.Tx, g fence.Grant) error {
	_, err := tx.Exec(ctx, `UPDATE invoices SET status = $1 WHERE id = 1`, fmt.Sprint(g.Token))
	return err
}

// statedly does so, and says under which grant.
func statedly(ctx context.Context, tx pgx.Tx, g fence.Grant) error {
	if err := fence.State(ctx, tx, g); err != nil {
		return err
	}
	return g.Stale(fence.Explain(plainly(ctx, tx, g)))
}

// raisedly does so under the fence of a resource.
func raisedly(ctx context.Context, tx pgx.Tx, g fence.Grant) error {
	if err := fence.Raise(ctx, tx, g, "ledger"); err != nil {
		return err
	}
	return plainly(ctx, tx, g)
}

// heldly does so while it holds the lock.
func heldly(ctx context.Context, tx pgx.Tx, g fence.Grant) error {
	if err := fence.Hold(ctx, tx, g); err != nil {
		return err
	}
	return plainly(ctx, tx, g)
}

var protections = map[string]protection{
	"update": {write: func(ctx context.Context, tx pgx.Tx, g fence.Grant) error {
		return invoices.Update(ctx, tx, g, invoice(1, fmt.Sprint(g.Token)))
	}},
	"update of several": {write: func(ctx context.Context, tx pgx.Tx, g fence.Grant) error {
		return invoices.UpdateRows(ctx, tx, g, []fence.Row{invoice(2, fmt.Sprint(g.Token)), invoice(1, fmt.Sprint(g.Token))})
	}},
	"upsert": {write: func(ctx context.Context, tx pgx.Tx, g fence.Grant) error {
		return invoices.Upsert(ctx, tx, g, invoice(1, fmt.Sprint(g.Token)))
	}},
	"upsert of several": {write: func(ctx context.Context, tx pgx.Tx, g fence.Grant) error {
		return invoices.UpsertRows(ctx, tx, g, []fence.Row{invoice(2, fmt.Sprint(g.Token)), invoice(1, fmt.Sprint(g.Token))})
	}},
	"upsert after a delete": {
		write: func(ctx context.Context, tx pgx.Tx, g fence.Grant) error {
			return invoices.Upsert(ctx, tx, g, invoice(1, fmt.Sprint(g.Token)))
		},
		rival: func(ctx context.Context, tx pgx.Tx, g fence.Grant) error { return invoices.Delete(ctx, tx, g, key(1)) },
	},
	"rekey": {
		write: func(ctx context.Context, tx pgx.Tx, g fence.Grant) error {
			return invoices.Update(ctx, tx, g, invoice(1, fmt.Sprint(g.Token)))
		},
		rival: func(ctx context.Context, tx pgx.Tx, g fence.Grant) error {
			if err := invoices.Rekey(ctx, tx, g, key(1), key(3)); err != nil {
				return err
			}
			return invoices.Update(ctx, tx, g, invoice(3, fmt.Sprint(g.Token)), fence.Again())
		},
	},
	"resource": {write: raisedly},
	"resource that was raised before": {
		early: func(ctx context.Context, tx pgx.Tx, g fence.Grant) error { return fence.Raise(ctx, tx, g, "ledger") },
		write: raisedly,
	},
	"protected table":                         {setup: `SELECT pglock.protect('invoices')`, write: statedly},
	"protected table that was written before": {setup: `SELECT pglock.protect('invoices')`, early: statedly, write: statedly},
	"protected rows":                          {setup: `SELECT pglock.protect('invoices', 'id')`, write: statedly},
	"held":                                    {held: true, write: heldly},
	"resource that was raised before, as it travels with BEGIN": {
		early: func(ctx context.Context, tx pgx.Tx, g fence.Grant) error { return fence.Raise(ctx, tx, g, "ledger") },
		write: withBegin("raised", ", ARRAY['ledger']"),
	},
	"protected table, as it travels with BEGIN": {setup: `SELECT pglock.protect('invoices')`, write: withBegin("stated", "")},
	"held, as it travels with BEGIN":            {held: true, write: withBegin("held", ", 60000, 60000")},
	"resource, and what is first": {
		write: raisedly,
		first: func(ctx context.Context, db fence.Beginner, g fence.Grant, f func() error, opts ...fence.Option) error {
			return fence.Tx(ctx, db, g, "ledger", func(pgx.Tx) error { return f() }, opts...)
		},
	},
	"protected table, and what is first": {
		setup: `SELECT pglock.protect('invoices')`, write: statedly,
		first: func(ctx context.Context, db fence.Beginner, g fence.Grant, f func() error, opts ...fence.Option) error {
			return fence.StatedTx(ctx, db, g, func(pgx.Tx) error { return f() }, opts...)
		},
	},
	"held, and what is first": {
		held: true, write: heldly,
		first: func(ctx context.Context, db fence.Beginner, g fence.Grant, f func() error, opts ...fence.Option) error {
			return fence.HeldTx(ctx, db, g, func(context.Context, pgx.Tx) error { return f() }, opts...)
		},
	},
}

// firstly are the writer's steps of a transaction that begins with its first write. It is committed when f returns.
func (m *matrix) firstly(ctx context.Context, g fence.Grant, level pgx.TxIsoLevel) (begin, write, commit func() error) {
	wrote, commits, ended := make(chan error), make(chan bool), make(chan error, 1)
	begin = func() error { return nil }
	write = func() error {
		go func() {
			var b pgx.Batch
			b.Queue(`UPDATE invoices SET status = $1 WHERE id = 1`, fmt.Sprint(g.Token))
			ended <- m.first(ctx, m.writer, g, func() error { wrote <- nil; <-commits; return nil }, fence.First(&b), fence.Isolation(level))
		}()
		select {
		case <-wrote:
			return nil
		case err := <-ended:
			return err
		}
	}
	return begin, write, func() error { close(commits); return <-ended }
}

// withBegin writes under what HeldTx and its like send with BEGIN; here it is sent later.
func withBegin(how, args string) func(context.Context, pgx.Tx, fence.Grant) error {
	return func(ctx context.Context, tx pgx.Tx, g fence.Grant) error {
		_, err := tx.Exec(ctx, fmt.Sprintf("CALL pglock.fence_begin_%s('%s', %d, %d%s)", how, g.Lock, g.Slot, g.Token, args))
		if sqlState(err) == "FL000" {
			return fmt.Errorf("%w: %w", fence.ErrStale, err)
		}
		if err != nil {
			return err
		}
		return fence.Explain(plainly(ctx, tx, g))
	}
}

// Every order of the steps of a writer and of the rival that takes its lock over: the writer begins, writes and commits; the
// rival is granted the lock, writes, and commits or rolls back. At every isolation level, under every protection: a stale write
// is never committed, and a live one is never refused. What shows least that the rest has not is left to the long mode.
func TestNoOrderOfStepsLetsAStaleWriteIn(t *testing.T) {
	t.Parallel()
	for name, p := range protections {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			d.Exec(t, createInvoices+`; `+p.setup)
			m := &matrix{d: d, protection: p, writer: d.Conn(t), rival: d.Conn(t)}
			m.watch = d.Conn(t)
			for _, level := range levels {
				for _, order := range orders("", 3, 3) {
					for _, end := range []string{"commit", "rollback"} {
						if (level == pgx.Serializable || end == "rollback") && pgtest.Rounds(0, 1) == 0 {
							continue
						}
						if m.play(t, level, order, end); t.Failed() {
							t.Fatalf("at %s, steps %s (w: the writer's, r: the rival's), the rival's %s", level, order, end)
						}
					}
				}
			}
		})
	}
}

// orders are all orders of so many steps of a writer and of a rival.
func orders(before string, writer, rival int) []string {
	if writer+rival == 0 {
		return []string{before}
	}
	var all []string
	if writer > 0 {
		all = append(all, orders(before+"w", writer-1, rival)...)
	}
	if rival > 0 {
		all = append(all, orders(before+"r", writer, rival-1)...)
	}
	return all
}

type matrix struct {
	d *pgtest.Database
	protection
	writer, rival, watch *pgx.Conn
}

// An actor takes steps, one after the other. A step may have to wait for the other actor; its own next one then waits for it.
type actor struct {
	conn  *pgx.Conn
	steps []step
	next  int
	err   error // of the step that failed: no further one is taken
	busy  chan error
}

// A step is taken by the actor; what became of it is noted by the test.
type step struct {
	take func() error
	note func(ok bool)
}

func (m *matrix) play(t *testing.T, level pgx.TxIsoLevel, order, end string) {
	t.Helper()
	ctx := bounded(t)
	exec(t, m.watch, `DELETE FROM pglock.fences; SELECT pglock.fence_state('reset', 0, 1);
		DELETE FROM invoices; INSERT INTO invoices VALUES (1, 'old', 0), (2, 'old', 0); DELETE FROM pglock.fences`)
	mine := held(t, m.d)
	if m.early != nil {
		wantErr(t, "before", pgx.BeginFunc(ctx, m.watch, func(tx pgx.Tx) error { return m.early(ctx, tx, mine) }), nil)
	}
	var (
		wtx, rtx                                pgx.Tx
		granted, rivalWrote, undone, committed  bool // the rival
		wrote, wroteLate, writerDone, refusable bool // the writer
	)
	begins := func() (err error) {
		if wtx, err = m.writer.BeginTx(ctx, pgx.TxOptions{IsoLevel: level}); err != nil {
			return err
		}
		_, err = wtx.Exec(ctx, `SELECT count(*) FROM invoices`)
		return err
	}
	writes := func() error { return m.write(ctx, wtx, mine) }
	commits := func() error { return wtx.Commit(ctx) }
	if m.first != nil {
		begins, writes, commits = m.firstly(ctx, mine, level)
	}
	writer := &actor{conn: m.writer, steps: []step{
		{begins, func(bool) {}},
		{writes, func(ok bool) { wrote, refusable = ok, rivalWrote && !undone || m.held && granted }},
		{commits, func(ok bool) { writerDone, wroteLate = ok, ok && (committed || m.held && granted) }},
	}}
	theirs := fence.Grant{Lock: "billing"}
	write := m.protection.rival
	if write == nil {
		write = m.write
	}
	rival := &actor{conn: m.rival, steps: []step{
		{func() error {
			const sql = `SELECT status, coalesce(token, 0) FROM pglock.acquire(ARRAY['billing'], ARRAY[gen_random_uuid()], 'rival', ARRAY[30000000]::bigint[])`
			if _, err := m.rival.Exec(ctx, `UPDATE pglock.leases SET expires_at = 'epoch', not_before = 'epoch'`); err != nil {
				return err
			}
			var status string
			err := m.rival.QueryRow(ctx, sql).Scan(&status, &theirs.Token)
			if err == nil && status != "granted" {
				return errHeld
			}
			return err
		}, func(ok bool) { granted = ok }},
		{func() (err error) {
			if rtx, err = m.rival.Begin(ctx); err != nil {
				return err
			}
			return write(ctx, rtx, theirs)
		}, func(ok bool) { rivalWrote = ok }},
		{func() error {
			if end == "rollback" {
				return rtx.Rollback(ctx)
			}
			return rtx.Commit(ctx)
		}, func(ok bool) { committed, undone = ok && end == "commit", end == "rollback" }},
	}}
	for _, who := range order {
		if who == 'w' {
			m.step(t, writer)
		} else {
			m.step(t, rival)
		}
	}
	for !writer.over() || !rival.over() { // whoever waited for the other goes on
		m.step(t, writer)
		m.step(t, rival)
	}
	for _, tx := range []pgx.Tx{wtx, rtx} {
		if tx != nil {
			_ = tx.Rollback(ctx) // of one that failed
		}
	}

	switch snapshot := level != pgx.ReadCommitted; {
	case wroteLate:
		t.Error("the stale write was committed")
	case writer.err != nil && !refusable && !(m.held && snapshot && granted):
		t.Errorf("the live write was refused: %v", writer.err)
	case writer.err != nil && !errors.Is(writer.err, fence.ErrStale) && !(snapshot && conflict(writer.err)):
		t.Errorf("the stale write failed with %v", writer.err)
	case rival.err != nil && !(m.held && wrote && errors.Is(rival.err, errHeld)):
		t.Errorf("the rival failed: %v", rival.err)
	}
	const last = `SELECT coalesce((SELECT status FROM invoices WHERE id IN (1, 3)), 'none')`
	got := pgtest.Query[string](t, m.d, last)
	switch {
	case committed && got == fmt.Sprint(mine.Token):
		t.Error("what the writer left is there after the rival has committed")
	case !committed && writerDone && got != fmt.Sprint(mine.Token):
		t.Errorf("the row is %q, and the writer wrote it last", got)
	}
}

var errHeld = errors.New("held")

// conflict tells what a snapshot that is too old comes back with.
func conflict(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "40001"
}

// step takes the actor's next step, or looks again at one that waits. It returns when that is done or waits for the other actor.
func (m *matrix) step(t *testing.T, a *actor) {
	t.Helper()
	if a.over() {
		return
	}
	if a.busy == nil {
		take := a.steps[a.next].take
		a.busy = make(chan error, 1)
		go func() { a.busy <- take() }()
	}
	patience := 3 * time.Millisecond
	for waits := false; ; patience = 0 {
		select {
		case a.err = <-a.busy:
			a.busy = nil
			a.steps[a.next].note(a.err == nil)
			a.next++
			return
		case <-time.After(patience): // most need no look at what they wait for
		}
		if waits {
			return
		}
		const sql = `SELECT wait_event_type IS NOT DISTINCT FROM 'Lock' FROM pg_stat_activity WHERE pid = $1`
		if err := m.watch.QueryRow(t.Context(), sql, a.conn.PgConn().PID()).Scan(&waits); err != nil {
			t.Fatal(err)
		}
	}
}

func (a *actor) over() bool { return a.err != nil || a.next == len(a.steps) }
