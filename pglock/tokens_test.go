package pglock_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

func TestTokensRiseOverAllAcquisitionsOfAllClients(t *testing.T) {
	t.Parallel()
	const clients, acquisitions = 8, 1000
	d := pgtest.DB(t)
	var inside []fence.Token // by whoever holds the lock: the race detector sees a second holder
	var all sync.WaitGroup
	for range clients {
		c := client(t, d)
		all.Go(func() {
			for full := false; !full; {
				l, err := c.Acquire(t.Context(), "a")
				if err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				if full = len(inside) >= acquisitions; !full {
					inside = append(inside, l.Token())
				}
				if err := l.Release(t.Context()); err != nil {
					t.Errorf("Release: %v", err)
					return
				}
			}
		})
	}
	all.Wait()
	if len(inside) != acquisitions {
		t.Fatalf("%d acquisitions, want %d", len(inside), acquisitions)
	}
	if !slices.IsSorted(inside) || len(slices.Compact(slices.Clone(inside))) != acquisitions {
		t.Errorf("tokens do not strictly rise: %v", inside)
	}
}

// However a grant ended, the next one has a greater token, for the same owner too.
func TestTokensRiseHoweverTheLastGrantEnded(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	var clients []*pglock.Client
	for range 3 {
		clients = append(clients, open(t, d.URL, pglock.Config{Owner: "always the same"}))
	}
	for _, c := range []struct {
		ending string
		end    func(t *testing.T, d *pgtest.Database, l *pglock.Lease)
		anew   bool // by clients that have seen no token: another would say that the database is not what it was
	}{
		{ending: "released", end: func(t *testing.T, _ *pgtest.Database, l *pglock.Lease) { release(t, l) }},
		{ending: "expired", end: func(t *testing.T, d *pgtest.Database, _ *pglock.Lease) { d.Age(t, "a", pglock.DefaultTTL) }},
		{ending: "row deleted", end: func(t *testing.T, d *pgtest.Database, _ *pglock.Lease) { d.Exec(t, `DELETE FROM pglock.leases`) }},
		{ending: "truncated", end: func(t *testing.T, d *pgtest.Database, _ *pglock.Lease) { d.Exec(t, `TRUNCATE pglock.leases`) }},
		{ending: "token erased", end: func(t *testing.T, d *pgtest.Database, _ *pglock.Lease) {
			d.Exec(t, `UPDATE pglock.leases SET token = 0, expires_at = 'epoch'`)
		}},
		{ending: "pruned", end: func(t *testing.T, d *pgtest.Database, l *pglock.Lease) {
			release(t, l)
			d.Exec(t, `UPDATE pglock.leases SET granted_at = 'epoch'`)
			if n, err := clients[0].Prune(soon(t), 0); n != 1 || err != nil {
				t.Errorf("Prune = %d, %v", n, err)
			}
		}},
		{ending: "sequence set back, row kept", anew: true, end: func(t *testing.T, d *pgtest.Database, l *pglock.Lease) {
			release(t, l)
			d.Exec(t, `SELECT setval('pglock.fencing_token', 1)`)
		}},
	} {
		t.Run(c.ending, func(t *testing.T) {
			d.Exec(t, `DELETE FROM pglock.leases`)
			last := fence.Token(0)
			for _, client := range clients {
				if c.anew {
					client = open(t, d.URL, pglock.Config{Owner: "always the same"})
				}
				l := take(t, client, "a")
				if l.Token() <= last {
					t.Errorf("token %d after %d", l.Token(), last)
				}
				last = l.Token()
				c.end(t, d, l)
			}
		})
	}
}

func TestALosingTryUsesUpNoTokenAndWritesNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	take(t, client(t, d), "a", pglock.NoRenewal())
	rival := client(t, d)
	refused(t, rival, "a")
	const touched = `SELECT ctid || ' ' || xmin || ' ' || xmax FROM pglock.leases` // who wrote the row, and who locked it
	before, token := pgtest.Query[string](t, d, touched), drawn(t, d)

	for range 200 {
		refused(t, rival, "a")
	}

	if got := drawn(t, d); got != token {
		t.Errorf("200 losing tries moved the sequence from %d to %d", token, got)
	}
	if got := pgtest.Query[string](t, d, touched); got != before {
		t.Errorf("a losing try touched the row: %s before, %s after", before, got)
	}
}

func TestRenewalsNeverChangeTheToken(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	l := take(t, client(t, d), "a")
	for range 20 {
		wantErr(t, "Renew", l.Renew(soon(t)), nil)
	}
	if got := pgtest.Query[int64](t, d, `SELECT token FROM pglock.leases WHERE name = 'a'`); got != int64(l.Token()) || drawn(t, d) != got {
		t.Errorf("after renewals the row has token %d, the sequence %d, the lease %d", got, drawn(t, d), l.Token())
	}
}
