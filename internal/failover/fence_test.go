package failover

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

var invoices = fence.Table{Name: "invoices", Key: []string{"id"}}

// What the locks protect is in another database, which has seen the tokens that were lost. It accepts none that is not above
// them, and a lease whose write it refuses is over.
func TestFailoverLosesTokensThatAFenceHasSeen(t *testing.T) {
	repeatedly(t, func(t *testing.T) {
		ledger := newServer(t, long, nil)
		ledger.Exec(t, `CREATE TABLE invoices (id int PRIMARY KEY, status text, fencing_token bigint)`)
		ledger.Exec(t, `INSERT INTO invoices VALUES (0, 'open', 0), (1, 'open', 0)`)
		pool := ledger.Pool(t)
		s := newStory(t, nil)
		standby := s.db.Replica(t, pgtemp.StandbyOptions{})
		s.before()
		standby.WaitReplayed(t, s.db)
		standby.Way.Freeze()
		s.tail()
		for i, side := range s.sides {
			do(t, "write before the failover", pay(t, pool, i, side.lost))
		}
		s.failOver(standby)

		next := s.sides[0].ask(t)
		do(t, "write after the failover", pay(t, pool, 0, next))
		wantErr(t, "write of the one before", pay(t, pool, 0, s.sides[0].lost), fence.ErrStale)
		wantErr(t, "its lease", s.sides[0].lost.Err(), pglock.ErrLost)
		wantErr(t, "the lease of the one after", next.Err(), nil)

		behind := s.sides[1].ask(t)
		wantErr(t, "write of who was granted a token again", pay(t, pool, 1, behind), fence.ErrStale)
		wantErr(t, "its lease", behind.Err(), pglock.ErrLost)
		do(t, "write of the one before, where there is no guard", pay(t, pool, 1, s.sides[1].lost, fence.Again()))
		if n := pgtest.Query[int](t, ledger, `SELECT count(*) FROM invoices WHERE status = 'paid'`); n != 2 {
			t.Errorf("%d invoices are paid, want 2", n)
		}
	})
}

func pay(t *testing.T, pool *pgxpool.Pool, id int, l *pglock.Lease, opts ...fence.Option) error {
	t.Helper()
	return invoices.Update(soon(t), pool, l.Grant(), fence.Row{"id": id, "status": "paid"}, opts...)
}

// ask is granted on the new server what was lost with the old one.
func (s *side) ask(t *testing.T) *pglock.Lease {
	t.Helper()
	next := s.open("next")
	if s.guard {
		_, err := next.TryAcquire(soon(t), "lost")
		wantErr(t, "TryAcquire", err, pglock.ErrHeldBack)
		s.db.Exec(t, `SELECT pglock.end_hold()`)
	}
	l, err := next.TryAcquire(soon(t), "lost", pglock.NoRenewal())
	do(t, "TryAcquire", err)
	return l
}
