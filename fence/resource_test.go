package fence_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/migrations"
)

// raised raises the fence of "report" in a transaction that stays open.
func raised(t *testing.T, conn *pgx.Conn, level pgx.TxIsoLevel, g fence.Grant) pgx.Tx {
	t.Helper()
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, fmt.Sprint("raise with ", g.Token), fence.Raise(bounded(t), tx, g, "report"), nil)
	return tx
}

func lastOf(t *testing.T, d *pgtest.Database) int64 {
	t.Helper()
	return pgtest.Query[int64](t, d, `SELECT coalesce(max(last_token), 0) FROM pglock.fences WHERE relation = 0::oid AND resource = 'report'`)
}

// A later grant waits for an earlier one's open transaction, and goes on when that has ended, either way.
func TestLaterGrantWaits(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	a, b := d.Conn(t), d.Conn(t)
	for i, end := range []func(*testing.T, pgx.Tx){commit, rollback, commit} {
		first := raised(t, a, pgx.ReadCommitted, grant(fence.Token(10*i+1)))
		second, err := b.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx := bounded(t)
		got := waiting(t, d, func() error { return fence.Raise(ctx, second, grant(fence.Token(10*i+2)), "report") })
		end(t, first)
		wantErr(t, "later grant", <-got, nil)
		commit(t, second)
		if last := lastOf(t, d); last != int64(10*i+2) {
			t.Errorf("the fence stands at %d", last)
		}
	}
}

// An earlier grant compares with what the one it waited for has left.
func TestEarlierGrantThatWaited(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			d := pgtest.DB(t)
			d.Exec(t, createInvoices) // for the snapshot
			a, b := d.Conn(t), d.Conn(t)
			commit(t, raised(t, a, pgx.ReadCommitted, grant(5)))
			second := begin(t, b, level)
			first := raised(t, a, pgx.ReadCommitted, grant(9))
			ctx := bounded(t)
			got := waiting(t, d, func() error { return fence.Raise(ctx, second, grant(7), "report") })
			commit(t, first)
			err := <-got
			if level == pgx.ReadCommitted {
				wantStale(t, "earlier grant", err, 9)
			} else if sqlState(err) != "40001" {
				t.Errorf("earlier grant = %v, want 40001", err)
			}
			rollback(t, second)
		})
	}
}

// At no isolation level does an old snapshot decide: the same grant, a new one, and the first one ever.
func TestOldSnapshotNeverPasses(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	conn, late := d.Conn(t), d.Conn(t)
	for _, before := range []fence.Token{0, 5, 7} {
		for _, level := range levels {
			t.Run(fmt.Sprintf("%s/%d", level, before), func(t *testing.T) {
				exec(t, conn, `DELETE FROM pglock.fences`)
				if before > 0 {
					commit(t, raised(t, conn, pgx.ReadCommitted, grant(before)))
				}
				tx := begin(t, late, level)
				defer rollback(t, tx)
				commit(t, raised(t, conn, pgx.ReadCommitted, grant(9)))
				err := fence.Raise(bounded(t), tx, grant(7), "report")
				if level == pgx.ReadCommitted {
					wantStale(t, "raise", err, 9)
				} else if sqlState(err) != "40001" {
					t.Errorf("raise = %v, want 40001", err)
				}
			})
		}
	}
}

// One grant may have several transactions open at once; a later one waits for all of them.
func TestSameGrantPassesSideBySide(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	a, b, c := d.Conn(t), d.Conn(t), d.Conn(t)
	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			exec(t, a, `DELETE FROM pglock.fences`)
			commit(t, raised(t, a, level, grant(5)))
			first, second := raised(t, a, level, grant(5)), raised(t, b, level, grant(5))
			third, err := c.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ctx := bounded(t)
			got := waiting(t, d, func() error { return fence.Raise(ctx, third, grant(6), "report") })
			commit(t, first)
			d.WaitFor(t, pgtest.Waiting)
			commit(t, second)
			wantErr(t, "later grant", <-got, nil)
			commit(t, third)
			wantStale(t, "the same grant afterwards", fence.Tx(ctx, a, grant(5), "report", nothing), 6)
		})
	}
}

// A fence that was raised under a savepoint goes with it.
func TestRaiseUnderASavepoint(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	tx, err := d.Conn(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	point, err := tx.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, "raise", fence.Raise(t.Context(), point, grant(9), "report"), nil)
	rollback(t, point)
	commit(t, tx)
	commit(t, raised(t, d.Conn(t), pgx.ReadCommitted, grant(8)))
}

func TestResourceBelongsToOneLock(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	conn := d.Conn(t)
	ctx := t.Context()
	commit(t, raised(t, conn, pgx.ReadCommitted, grant(5)))
	for _, g := range []fence.Grant{{Lock: "other", Token: 4}, {Lock: "other", Token: 9}, {Lock: "billing", Slot: 1, Token: 9}} {
		g = g.OnStale(func(err error) { t.Errorf("the lease was told %v", err) })
		err := fence.Tx(ctx, conn, g, "report", nothing)
		var other *fence.OtherLockError
		if !errors.Is(err, fence.ErrOtherLock) || errors.Is(err, fence.ErrStale) || !errors.As(err, &other) {
			t.Fatalf("%v, want ErrOtherLock", err)
		}
		if other.Lock != g.Lock || other.Slot != g.Slot || other.OtherLock != "billing" || other.OtherSlot != 0 {
			t.Errorf("%+v names the wrong locks", other)
		}
	}
	if last := lastOf(t, d); last != 5 {
		t.Errorf("the fence stands at %d, want 5", last)
	}
}

// aLease plants a row as a grant leaves it, and sets the sequence to its token.
func aLease(t *testing.T, d *pgtest.Database, token fence.Token) {
	t.Helper()
	d.Exec(t, `INSERT INTO pglock.leases (name, token) VALUES ('billing', $1) ON CONFLICT (name, slot) DO UPDATE SET token = excluded.token`, int64(token))
	d.Exec(t, `SELECT setval('pglock.fencing_token', $1)`, int64(token))
}

func TestTokenThatWasNeverGranted(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices+`; INSERT INTO invoices VALUES (1, 'old', 1)`)
	conn := d.Conn(t)
	ctx := t.Context()
	refused := func(what string, g fence.Grant) {
		t.Helper()
		wantErr(t, what+": Tx", fence.Tx(ctx, conn, g, "report", nothing), fence.ErrNeverGranted)
		for verb, write := range verbs {
			wantErr(t, what+": "+verb, write(ctx, conn, g), fence.ErrNeverGranted)
		}
	}
	refused("the greatest", grant(1<<53-1))
	refused("beyond what a floor leads to", grant(highestFloor+1<<40+1))
	missing := invoices.Update(ctx, conn, grant(1<<53-1), invoice(2, "x"))
	wantErr(t, "where there is no row: Update", missing, fence.ErrNeverGranted)

	aLease(t, d, 50)
	refused("after the latest", grant(51))
	commit(t, raised(t, conn, pgx.ReadCommitted, grant(50)))
	if got := state(t, d) + tombstones(t, d); got != "old 1" {
		t.Errorf("%q, want the row as it was", got)
	}
}

// highestFloor is how far an owner may raise the floor of the tokens.
const highestFloor fence.Token = 6755399441055744

// The data may be in another database than the locks, whose tokens need not follow the clock.
func TestLiveWritePassesAfterTheFloorWasRaised(t *testing.T) {
	t.Parallel()
	locks, data := pgtest.DB(t), pgtest.DB(t)
	data.Exec(t, createInvoices)
	ctx, conn := t.Context(), data.Conn(t)
	for _, floor := range []fence.Token{5000000000000000, highestFloor} {
		locks.Exec(t, `SELECT pglock.raise_token_floor($1)`, int64(floor))
		g := grant(fence.Token(pgtest.Query[int64](t, locks, `SELECT token FROM pglock.acquire(ARRAY['billing'], ARRAY[gen_random_uuid()], 'x', ARRAY[10000000::bigint])`)))
		wantErr(t, "upsert", invoices.Upsert(ctx, conn, g, invoice(1, "live")), nil)
		wantErr(t, "update", invoices.Update(ctx, conn, g, invoice(1, "live"), fence.Again()), nil)
		wantErr(t, "Tx", fence.Tx(ctx, conn, g, "report", func(pgx.Tx) error { return nil }), nil)
		locks.Exec(t, `UPDATE pglock.leases SET expires_at = 'epoch'`)
	}
}

// A made-up token that cannot be told from a granted one shuts a fence until the owner of the locks raises the floor.
func TestRaisedFloorOpensAFenceThatAMadeUpTokenShut(t *testing.T) {
	t.Parallel()
	locks, data := pgtest.DB(t), pgtest.DB(t)
	ctx, conn := t.Context(), data.Conn(t)
	commit(t, raised(t, conn, pgx.ReadCommitted, grant(highestFloor+1<<21)))
	locks.Exec(t, `SELECT pglock.raise_token_floor($1) FROM generate_series(1, 2)`, int64(highestFloor))
	token := pgtest.Query[int64](t, locks, `SELECT token FROM pglock.acquire(ARRAY['billing'], ARRAY[gen_random_uuid()], 'x', ARRAY[10000000::bigint])`)
	wantErr(t, "Tx", fence.Tx(ctx, conn, grant(fence.Token(token)), "report", func(pgx.Tx) error { return nil }), nil)
}

// The grant may be later than the snapshot. That is no reason to call it made up.
func TestGrantAfterTheSnapshotIsNotCalledMadeUp(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices)
	aLease(t, d, 50)
	for i, level := range levels[1:] {
		token := fence.Token(60 + i)
		tx := begin(t, d.Conn(t), level)
		aLease(t, d, token)
		wantErr(t, string(level), fence.Raise(t.Context(), tx, grant(token), "report"), nil)
		wantErr(t, string(level), invoices.Update(t.Context(), tx, grant(token), invoice(1, "x")), fence.ErrNoRow)
		commit(t, tx)
		tx = begin(t, d.Conn(t), level)
		wantErr(t, string(level), fence.Raise(t.Context(), tx, grant(token+9), "report"), fence.ErrNeverGranted)
		rollback(t, tx)
	}
}

// The resource has seen more than this lock service has ever drawn.
func TestLockServiceThatLostItsMemory(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	conn := d.Conn(t)
	commit(t, raised(t, conn, pgx.ReadCommitted, grant(100)))
	var told error
	behind := func(token fence.Token) error {
		return fence.Tx(t.Context(), conn, grant(token).OnStale(func(err error) { told = err }), "report", nothing)
	}
	if err := behind(50); !errors.Is(err, fence.ErrStale) || errors.Is(err, fence.ErrBehind) {
		t.Errorf("%v, want ErrStale alone: the lock lives in another database", err)
	}
	aLease(t, d, 50)
	err := behind(50)
	if !errors.Is(err, fence.ErrStale) || !errors.Is(err, fence.ErrBehind) || !errors.Is(told, fence.ErrBehind) {
		t.Errorf("%v, and the lease was told %v; want ErrBehind and ErrStale", err, told)
	}
	saysTheCure(t, d, err, "pglock", 100)
	d.Exec(t, `SELECT setval('pglock.fencing_token', 200)`)
	if err := behind(50); errors.Is(err, fence.ErrBehind) {
		t.Errorf("%v, want ErrStale alone: the token has been drawn", err)
	}
}

// saysTheCure checks that an error has the SQL that raises the floor in its text, and that the database takes it.
func saysTheCure(t *testing.T, d *pgtest.Database, err error, schema string, floor int) {
	t.Helper()
	cure := fmt.Sprintf("SELECT %s.raise_token_floor(%d)", pgx.Identifier{schema}.Sanitize(), floor)
	if err == nil || !strings.Contains(err.Error(), cure) {
		t.Errorf("%v does not say %s", err, cure)
	}
	d.Exec(t, cure)
}

// The cure is in the schema whose fence refused, whatever its name is.
func TestTheCureOfALockThatIsBehindNamesItsSchema(t *testing.T) {
	t.Parallel()
	const schema = `odd "name"`
	d := pgtest.DB(t)
	if err := migrations.Up(t.Context(), d.Pool(t), migrations.Schema(schema)); err != nil {
		t.Fatal(err)
	}
	in := pgx.Identifier{schema}.Sanitize()
	d.Exec(t, createInvoices+fmt.Sprintf(`; INSERT INTO invoices VALUES (1, 'theirs', 100); CREATE TABLE plain (id int); SELECT %[1]s.protect('plain');
		INSERT INTO %[1]s.leases (name, token) VALUES ('billing', 100)`, in))
	conn := d.Conn(t)
	protected := func(g fence.Grant) error {
		return fence.StatedTx(t.Context(), conn, g, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `INSERT INTO plain VALUES (1)`)
			return err
		})
	}
	resource := func(g fence.Grant) error { return fence.Tx(t.Context(), conn, g, "report", nothing) }
	row := func(g fence.Grant) error { return invoices.Update(t.Context(), conn, g, invoice(1, "ours")) }
	for _, write := range []func(fence.Grant) error{protected, resource} {
		wantErr(t, "a write", write(grant(100).InSchema(schema)), nil)
	}
	d.Exec(t, fmt.Sprintf(`UPDATE %[1]s.leases SET token = 50; SELECT setval('%[1]s.fencing_token', 50)`, in)) // a backup is restored
	refused := map[string]*fence.StaleError{}
	for what, write := range map[string]func(fence.Grant) error{"protected": protected, "resource": resource, "row": row} {
		err := write(grant(50).InSchema(schema))
		stale, ok := errors.AsType[*fence.StaleError](err)
		if !ok || !stale.Behind {
			t.Fatalf("%s: %v, want ErrBehind", what, err)
		}
		refused[what] = stale
	}
	for _, stale := range refused {
		saysTheCure(t, d, stale, schema, 100)
	}
}

// A row says nothing of the lock whose token it has. A later token that the service has drawn, for whichever lock, is no sign that it
// is behind; and a permit is not lost because the holder of another one has written.
func TestARowThatTheHolderOfAnotherLockOrPermitHasWritten(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createInvoices+`; INSERT INTO invoices VALUES (1, 'theirs', 120)`)
	aLease(t, d, 50)
	d.Exec(t, `INSERT INTO pglock.leases (name, slot, token) VALUES ('billing', 1, 50)`)
	for _, c := range []struct {
		drawn  int
		slot   int
		behind bool
		ends   bool
	}{{100, 0, true, true}, {200, 0, false, true}, {200, 1, false, false}} {
		d.Exec(t, `SELECT setval('pglock.fencing_token', $1)`, c.drawn)
		ended := false
		g := fence.Grant{Lock: "billing", Slot: c.slot, Token: 50}.OnStale(func(error) { ended = true })
		err := invoices.Update(t.Context(), d.Conn(t), g, invoice(1, "ours"))
		if !errors.Is(err, fence.ErrStale) || errors.Is(err, fence.ErrBehind) != c.behind || ended != c.ends {
			t.Errorf("%+v: %v, and the lease has ended: %v", c, err, ended)
		}
		if c.behind {
			saysTheCure(t, d, err, "pglock", 120)
		}
	}
}
