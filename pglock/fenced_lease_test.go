package pglock_test

import (
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func diary(t *testing.T) (*pgtest.Database, *pgxpool.Pool) {
	t.Helper()
	d := pgtest.DB(t)
	d.Exec(t, `CREATE TABLE diary (n int GENERATED ALWAYS AS IDENTITY, who text)`)
	return d, d.Pool(t)
}

func write(t *testing.T, pool *pgxpool.Pool, l *pglock.Lease, who string) error {
	t.Helper()
	return fence.Tx(soon(t), pool, l.Grant(), "diary", func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `INSERT INTO diary (who) VALUES ($1)`, who)
		return err
	})
}

func entries(t *testing.T, d *pgtest.Database) string {
	t.Helper()
	return pgtest.Query[string](t, d, `SELECT coalesce(string_agg(who, ' ' ORDER BY n), '') FROM diary`)
}

func TestAFencedWriteNeverLandsAfterALaterHoldersWrite(t *testing.T) {
	t.Parallel()
	d, pool := diary(t)
	old := take(t, client(t, d), "a", pglock.NoRenewal())
	inside, goOn := make(chan struct{}), make(chan struct{})
	paused := async(func() error {
		return fence.Tx(soon(t), pool, old.Grant(), "diary", func(tx pgx.Tx) error {
			close(inside)
			<-goOn
			_, err := tx.Exec(soon(t), `INSERT INTO diary (who) VALUES ('old')`)
			return err
		})
	})
	happens(t, "the old holder is inside its transaction", inside)
	d.Age(t, "a", time.Minute)
	next := take(t, client(t, d), "a")
	late := async(func() error { return write(t, pool, next, "next") })
	d.WaitFor(t, pgtest.Waiting) // for the old holder's commit
	close(goOn)

	wantErr(t, "the old holder's write", happens(t, "the old holder commits", paused), nil)
	wantErr(t, "the next holder's write", happens(t, "the next holder commits", late), nil)
	wantErr(t, "the old holder's second write", write(t, pool, old, "old"), fence.ErrStale)

	if got := entries(t, d); got != "old next" {
		t.Errorf("written in the order %q", got)
	}
	wantLoss(t, old, pglock.Taken) // a write that was refused as stale ends the lease
	wantErr(t, "the next holder's second write", write(t, pool, next, "next"), nil)
}

func TestAnOlderGrantOfTheSameOwnerIsFencedToo(t *testing.T) {
	t.Parallel()
	d, pool := diary(t)
	c := open(t, d.URL, pglock.Config{Owner: "w"})
	first := take(t, c, "a", pglock.NoRenewal())
	d.Age(t, "a", time.Minute)
	second := take(t, c, "a")
	wantErr(t, "write under the second grant", write(t, pool, second, "second"), nil)
	wantErr(t, "write under the first grant", write(t, pool, first, "first"), fence.ErrStale)
	if got := entries(t, d); got != "second" {
		t.Errorf("written: %q", got)
	}
}

func TestAReleasedOrZeroLeaseDoesNothingToTheLock(t *testing.T) {
	t.Parallel()
	d, pool := diary(t)
	c := client(t, d)
	released := take(t, c, "a")
	release(t, released)
	before := row(t, d, "a")
	for what, l := range map[string]*pglock.Lease{"released": released, "zero": {}} {
		wantErr(t, "Renew of a lease: "+what, l.Renew(soon(t)), pglock.ErrReleased)
		wantErr(t, "Release of a lease: "+what, l.Release(soon(t)), pglock.ErrReleased)
		wantErr(t, "Err of a lease: "+what, l.Err(), pglock.ErrReleased)
		if l.Valid() || !l.Deadline().IsZero() || l.String() == "" {
			t.Errorf("%s: valid %v until %v", what, l.Valid(), l.Deadline())
		}
		select {
		case <-l.Done():
		default:
			t.Errorf("%s: not done", what)
		}
	}
	wantErr(t, "a write under a released lease", write(t, pool, released, "released"), pglock.ErrReleased)
	wantErr(t, "Release of no lease", (*pglock.Lease)(nil).Release(soon(t)), pglock.ErrReleased)
	zero := &pglock.Lease{}
	wantErr(t, "a write under a zero lease", write(t, pool, zero, "zero"), fence.ErrNoToken)
	for _, token := range []fence.Token{0, -1, -1 << 62} {
		err := fence.Tx(soon(t), pool, fence.Grant{Lock: "a", Token: token}, "diary", func(pgx.Tx) error { return nil })
		wantErr(t, "a write under a made-up token", err, fence.ErrNoToken)
	}
	// Nor do the functions take such a token for a grant, whoever calls them.
	for _, sql := range []string{
		`SELECT status FROM pglock.renew(ARRAY['a'], ARRAY[gen_random_uuid()], ARRAY[$1::bigint])`,
		`SELECT status FROM pglock.renew(ARRAY['a'], ARRAY[NULL::uuid], ARRAY[$1::bigint])`,
		`SELECT status || CASE WHEN $1::bigint > 0 THEN '' ELSE '' END FROM pglock.release(ARRAY['a'], ARRAY[gen_random_uuid()])`,
		`SELECT status || CASE WHEN $1::bigint > 0 THEN '' ELSE '' END FROM pglock.release(ARRAY['a'], ARRAY[NULL::uuid])`,
	} {
		for _, token := range []int64{0, -1, int64(released.Token())} {
			if got := pgtest.Query[string](t, d, sql, token); got == "renewed" || got == "released" {
				t.Errorf("%s with %d = %s", sql, token, got)
			}
		}
	}
	if after := row(t, d, "a"); after != before {
		t.Errorf("the row changed from\n%s to\n%s", before, after)
	}
	take(t, client(t, d), "a")
}
