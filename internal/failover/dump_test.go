package failover

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/history"
	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/migrations"
	"github.com/fencedlock/fencedlock/pglock"
)

// restore puts what was dumped in the place of a database, whoever uses that.
func restore(t *testing.T, on *pgtemp.Server, dump string) {
	t.Helper()
	admin := pgtest.On(t, on, "postgres")
	admin.Exec(t, `ALTER DATABASE app ALLOW_CONNECTIONS false`) // clients come back as soon as they can
	admin.Exec(t, `SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = 'app'`)
	admin.Exec(t, `ALTER DATABASE app RENAME TO before`)
	admin.Exec(t, `CREATE DATABASE app`)
	pgtest.On(t, on, "app").Exec(t, dump)
}

// First the dump takes the place of the database in its server: its start is the same, and so are its system identifier and
// its timeline. Then it goes to another server.
func TestFailoverToARestoredDump(t *testing.T) {
	repeatedly(t, func(t *testing.T) {
		s := newStory(t, nil)
		s.before()
		dump := s.db.Dump(t)
		s.tail()
		s.each(func(s *side) { s.own.Freeze() })
		restore(t, s.db.Server, dump)
		s.moved(s.db.Server)
		s.after()
		s.check(everything...)

		s.each((*side).begin)
		s.tail()
		do(t, "Kill", s.db.Server.Kill())
		other := newServer(t, long, nil).Server
		restore(t, other, dump)
		s.moved(other)
		s.after()
		s.check(everything...)
	})
}

// Down refuses while a lease lives. What comes after Up knows nothing of what was before, and its tokens are greater all the same.
func TestFailoverToASchemaThatWasMadeAnew(t *testing.T) {
	t.Parallel()
	d := newServer(t, long, nil)
	record := history.NewRecorder("anew")
	pool := d.Pool(t)
	s := &side{T: t, guard: true, db: d, record: record, url: d.URL}
	old, next := open(t, d.URL, guarded, "old"), open(t, d.URL, guarded, "next")
	for range pgtest.Rounds(1, 10) {
		l, holding := s.grant(old, "old", "a")
		wantErr(t, "Down while a lock is held", migrations.Down(soon(t), pool), migrations.ErrInUse)
		do(t, "Renew after it", l.Renew(soon(t)))
		holding.Released()
		do(t, "Release", l.Release(soon(t)))
		anew(t, pool)
		s.take(next, "next", "a")
		s.take(old, "old", "a")
	}
	do(t, "the tokens", history.Check(record.History(), history.Options{LogLost: true}).Err())
}

func anew(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	do(t, "Down", migrations.Down(soon(t), pool))
	do(t, "Up", migrations.Up(soon(t), pool, migrations.Cap(long)))
}

// During a hold nobody knows which locks are held, and a new schema would not hold anything back.
func TestFailoverIsNotForgottenWithTheSchema(t *testing.T) {
	t.Parallel()
	d := newServer(t, long, nil)
	pool := d.Pool(t)
	do(t, "Restart", d.Server.Restart(soon(t), pgtemp.Immediate))
	wantErr(t, "Down after a restart that nobody has noticed", migrations.Down(soon(t), pool), migrations.ErrInUse)
	_, err := open(t, d.URL, guarded, "next").TryAcquire(soon(t), "a")
	wantErr(t, "TryAcquire after it", err, pglock.ErrHeldBack)
	wantErr(t, "Down during the hold", migrations.Down(soon(t), pool), migrations.ErrInUse)
	d.Exec(t, `SELECT pglock.end_hold()`)
	do(t, "Down", migrations.Down(soon(t), pool))
}
