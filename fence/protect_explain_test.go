package fence_test

import (
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// Each refusal is the library's error and PostgreSQL's, with the facts of both.
func TestExplain(t *testing.T) {
	t.Parallel()
	d := protected(t, "rows")
	d.Exec(t, `INSERT INTO pglock.leases (name, token) VALUES ('ahead', 1); SELECT setval('pglock.fencing_token', 5);
		INSERT INTO pglock.fences SELECT relation, 'row ' || hash_record_extended(ROW(2), 0) || '.' || hash_record_extended(ROW(2), 1), 'ahead', 0, 9
			FROM pglock.fences WHERE relation = 'plain'::regclass LIMIT 1`)
	conn := d.Conn(t)
	refused := func(g fence.Grant, customer int) error {
		tx := begun(t, conn, ``)
		defer rollback(t, tx)
		if g.Token > 0 {
			if err := fence.State(t.Context(), tx, g); err != nil {
				return err
			}
		}
		_, err := tx.Exec(t.Context(), fmt.Sprintf(`INSERT INTO plain VALUES (50, %d)`, customer))
		if err == nil {
			return nil
		}
		return fence.Explain(fmt.Errorf("insert: %w", err))
	}
	var (
		stale *fence.StaleError
		other *fence.OtherLockError
		pg    *pgconn.PgError
	)
	wantErr(t, "live", refused(grant(7), 1), nil)
	for _, c := range []struct {
		err  error
		want error
		code string
	}{
		{refused(fence.Grant{}, 1), fence.ErrNotStated, "FL001"},
		{refused(grant(6), 1), fence.ErrStale, "FL002"},
		{refused(lock("ahead", 1), 2), fence.ErrBehind, "FL003"},
		{refused(lock("other", 8), 1), fence.ErrOtherLock, "FL004"},
		{refused(lock("known", 99), 1), fence.ErrNeverGranted, "FL005"},
	} {
		if !errors.Is(c.err, c.want) || !errors.As(c.err, &pg) || pg.Code != c.code || (pg.TableName != "plain" && c.code != "FL005") {
			t.Errorf("%v, want %v and %s", c.err, c.want, c.code)
		}
		if again := fence.Explain(fmt.Errorf("more: %w", c.err)); again.Error() != "more: "+c.err.Error() || !errors.Is(again, c.want) {
			t.Errorf("explained twice: %v", again)
		}
	}
	if err := refused(grant(6), 1); !errors.As(err, &stale) || *stale != (fence.StaleError{Resource: "public.plain (1)", Lock: "billing", Token: 6, LastToken: 7}) {
		t.Errorf("%#v", stale)
	}
	if err := refused(lock("other", 8), 1); !errors.As(err, &other) || *other != (fence.OtherLockError{Resource: "public.plain (1)", Lock: "other", OtherLock: "billing"}) {
		t.Errorf("%#v", other)
	}
	// A proxy or a setting may have cut the detail.
	if err := fence.Explain(&pgconn.PgError{Code: "FL002", Detail: `{"tab`}); !errors.Is(err, fence.ErrStale) {
		t.Errorf("%v, want ErrStale", err)
	}
	for _, err := range []error{nil, errors.New("x"), &pgconn.PgError{Code: "23505"}, fence.ErrStale} {
		if got := fence.Explain(err); got != err {
			t.Errorf("Explain(%v) = %v", err, got)
		}
	}
}

// sqlStateError is what other drivers of database/sql return: of theirs only the code is known.
type sqlStateError string

func (e sqlStateError) Error() string    { return "refused" }
func (e sqlStateError) SQLState() string { return string(e) }

func TestARefusalIsKnownByItsCodeWhateverTheDriver(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]error{
		"FL001": fence.ErrNotStated, "FL002": fence.ErrStale, "FL003": fence.ErrBehind, "FL004": fence.ErrOtherLock, "FL005": fence.ErrNeverGranted,
	} {
		theirs := sqlStateError(code)
		if err := fence.Explain(fmt.Errorf("insert: %w", theirs)); !errors.Is(err, want) || !errors.Is(err, theirs) || err.Error() != "insert: refused" {
			t.Errorf("Explain(%s) = %v, want %v", code, err, want)
		}
	}
	if err := fence.Explain(sqlStateError("23505")); err != sqlStateError("23505") {
		t.Errorf("Explain = %v", err)
	}
}

func TestProtectOverDatabaseSQL(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, createLayouts)
	db := stdlib.OpenDBFromPool(d.Pool(t))
	defer db.Close()
	ctx := bounded(t)
	wantErr(t, "protect", fence.ProtectRows(ctx, fence.SQL(db), "plain", "customer"), nil)
	wantErr(t, "verify", fence.Verify(ctx, fence.SQL(db), "plain"), nil)
	write := func(g fence.Grant) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback() //nolint:errcheck // after the commit it says so
		if err := fence.StateSQL(ctx, tx, g); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE plain SET note = 'x'`); err != nil {
			return fence.Explain(err)
		}
		return tx.Commit()
	}
	wantErr(t, "write", write(grant(8)), nil)
	wantStale(t, "late write", write(grant(7)), 8)
	_, err := db.ExecContext(ctx, `UPDATE plain SET note = 'x'`)
	wantErr(t, "not stated", fence.Explain(err), fence.ErrNotStated)
	wantErr(t, "TxSQL", fence.TxSQL(ctx, db, grant(8), "report", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE plain SET note = 'x'`)
		return err
	}), nil)
	wantErr(t, "unprotect", fence.Unprotect(ctx, fence.SQL(db), "plain"), nil)
}

func TestStateRefusesWhatIsNoGrant(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	tx := begun(t, d.Conn(t), ``)
	defer rollback(t, tx)
	wantErr(t, "no token", fence.State(t.Context(), tx, fence.Grant{Lock: "billing"}), fence.ErrNoToken)
	wantErr(t, "no transaction", fence.State(t.Context(), nil, grant(7)), fence.ErrInvalid)
	wantErr(t, "no transaction", fence.StateSQL(t.Context(), nil, grant(7)), fence.ErrInvalid)
	wantErr(t, "an option for rows", fence.State(t.Context(), tx, grant(7), fence.Again()), fence.ErrInvalid)
	d.Exec(t, `INSERT INTO pglock.leases (name, token) VALUES ('billing', 20)`)
	wantErr(t, "never granted", fence.State(t.Context(), tx, grant(21)), fence.ErrNeverGranted)

	fresh := pgtest.Empty(t)
	bare := begun(t, fresh.Conn(t), ``)
	defer rollback(t, bare)
	wantErr(t, "not migrated", fence.State(t.Context(), bare, grant(7)), fence.ErrNotMigrated)
}

// A held transaction states its grant as well, and only while it is held.
func TestHoldAndRaiseState(t *testing.T) {
	t.Parallel()
	d := protected(t, "table")
	d.Exec(t, `INSERT INTO pglock.leases (name, token, expires_at) VALUES ('billing', 20, clock_timestamp() + interval '1 hour')`)
	conn := d.Conn(t)
	for what, call := range map[string]func(pgx.Tx, fence.Grant) error{
		"Hold":  func(tx pgx.Tx, g fence.Grant) error { return fence.Hold(t.Context(), tx, g) },
		"Raise": func(tx pgx.Tx, g fence.Grant) error { return fence.Raise(t.Context(), tx, g, "a") },
		"Raise twice": func(tx pgx.Tx, g fence.Grant) error {
			return errors.Join(fence.Raise(t.Context(), tx, g, "b"), fence.Raise(t.Context(), tx, g, "b"))
		},
		"Raise of two": func(tx pgx.Tx, g fence.Grant) error { return fence.Raise(t.Context(), tx, g, "c", fence.Also("d")) },
	} {
		tx := begun(t, conn, ``)
		wantErr(t, what, call(tx, grant(20)), nil)
		exec(t, tx, `UPDATE plain SET note = 'x'`)
		commit(t, tx)

		tx = begun(t, conn, ``)
		if err := call(tx, grant(3)); err == nil {
			t.Errorf("%s with a stale grant: no error", what)
		}
		_, err := tx.Exec(t.Context(), `UPDATE plain SET note = 'x'`)
		wantErr(t, what+" with a stale grant states nothing", fence.Explain(err), fence.ErrNotStated)
		rollback(t, tx)
	}
}
