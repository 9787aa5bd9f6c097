package pglock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// Behind a pooler in transaction mode nothing is missing, and nothing has to be configured.
func TestEverythingWorksBehindATransactionPooler(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, `CREATE TABLE diary (who text)`)
	url := pooler(t, d)
	pool, c := pooled(t, url, pglock.Config{Owner: "me", RenewEvery: 100 * time.Millisecond})
	_, rival := pooled(t, url, pglock.Config{Owner: "rival", RenewEvery: 100 * time.Millisecond})

	l := take(t, c, "a", pglock.Metadata(map[string]int{"run": 7}))
	renewedAgain(t, d, "a")
	renewedAgain(t, d, "a")
	stillHeld(t, d, l)
	if held := refused(t, rival, "a"); held.Owner != "me" || held.Token != l.Token() || held.Remaining <= 0 || held.Over {
		t.Errorf("refused with %+v, want it to name the holder", held)
	}
	isOurs := func(s pglock.Status) bool {
		return s.Name == "a" && s.Held && s.Owner == "me" && s.Token == l.Token() && string(s.Metadata) == `{"run": 7}`
	}
	if s, err := rival.Inspect(soon(t), "a"); err != nil || !isOurs(s) {
		t.Errorf("Inspect = %+v, %v", s, err)
	}
	if all, err := rival.List(soon(t)); err != nil || len(all) != 1 || !isOurs(all[0]) {
		t.Errorf("List = %+v, %v", all, err)
	}

	err := rival.Do(soon(t), "b", func(ctx context.Context, l *pglock.Lease) error {
		return fence.Tx(ctx, pool, l.Grant(), "diary", func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO diary VALUES ($1)`, "rival")
			return err
		})
	})
	wantErr(t, "Do with a fenced write", err, nil)
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM diary`); n != 1 {
		t.Errorf("%d rows are written, want 1", n)
	}
	if holds(t, d, "b") {
		t.Error("held after Do")
	}

	release(t, take(t, c, "daily", pglock.HoldAtLeast(time.Hour)))
	if held := refused(t, rival, "daily"); !held.Over || held.Remaining < 50*time.Minute {
		t.Errorf("refused with %+v, want it kept for an hour though nobody holds it", held)
	}

	old := take(t, c, "aged", pglock.NoRenewal())
	d.Age(t, "aged", time.Minute)
	if next := take(t, rival, "aged"); next.Token() <= old.Token() {
		t.Errorf("token %d after %d", next.Token(), old.Token())
	}
	wantErr(t, "Renew of what another has", old.Renew(soon(t)), pglock.ErrLost)
	wantLoss(t, old, pglock.Taken)

	vanished := take(t, c, "vanished")
	d.Exec(t, `DELETE FROM pglock.leases WHERE name = 'vanished'`)
	wantLoss(t, vanished, pglock.Deleted) // by the renewals that the client makes by itself

	d.Age(t, "b", 24*time.Hour)
	if n, err := rival.Prune(soon(t), time.Hour); n != 1 || err != nil {
		t.Errorf("Prune = %d, %v, want the one idle name", n, err)
	}
	if s, err := rival.Inspect(soon(t), "b"); err != nil || s.Token != 0 {
		t.Errorf("Inspect of what was pruned = %+v, %v", s, err)
	}

	const many = 100
	for i := range many {
		take(t, c, fmt.Sprint("job ", i))
	}
	const heldByMe = `SELECT count(*) FROM pglock.leases WHERE owner = 'me' AND expires_at > clock_timestamp()`
	if n := pgtest.Query[int](t, d, heldByMe); n != many+1 {
		t.Errorf("%d leases are held, want %d", n, many+1)
	}
	wantErr(t, "Close", c.Close(soon(t)), nil)
	if n := pgtest.Query[int](t, d, heldByMe); n != 0 {
		t.Errorf("%d leases are held after Close", n)
	}
	wantErr(t, "the first lease", l.Err(), pglock.ErrClosed)
	take(t, rival, "a")
}
