package failover

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// lazy is a server that acknowledges commits before they are on the disk, and keeps them in memory for as long as it can.
var lazy = map[string]string{"synchronous_commit": "off", "wal_writer_delay": "10s", "bgwriter_lru_maxpages": "0"}

// holdFlushes keeps everything in memory from now on that no commit asks to be flushed, and answers which process wrote it.
func holdFlushes(t *testing.T, d *pgtest.Database) (writer int) {
	t.Helper()
	flush(t, d)
	writer = pgtest.Query[int](t, d, `SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'`)
	do(t, "FreezeProcess", d.Server.FreezeProcess(writer))
	return writer
}

// First one backend dies: the server recovers, but its start time stays, so that nobody can tell, and with the guard nobody has
// to. Then all of the server dies.
func TestFailoverByCrashesThatLoseAsynchronousCommits(t *testing.T) {
	repeatedly(t, func(t *testing.T) {
		s := newStory(t, lazy)
		d, installed, control := s.db, s.sides[0], s.sides[1]
		installed.kept = true // a grant is never lost with its server's memory
		s.before()

		writer := holdFlushes(t, d)
		s.tail()
		do(t, "KillProcess", d.Server.KillProcess(pgtest.Query[int](t, d,
			`SELECT pid FROM pg_stat_activity WHERE application_name = 'pglock' LIMIT 1`)))
		_ = d.Server.KillProcess(writer) // or the others wait until it has been asked to end, in vain
		awaitRecovery(t, d, writer)
		s.moved(d.Server)
		control.after()
		next := installed.open("next")
		_, err := next.TryAcquire(soon(t), "lost")
		wantErr(t, "TryAcquire of what was not lost", err, pglock.ErrHeld)
		installed.take(next, "next", "new") // at once
		installed.settleKept(next)
		s.check(everything...)

		s.each((*side).begin)
		holdFlushes(t, d)
		s.tail()
		do(t, "Kill", d.Server.Kill())
		do(t, "Resume", d.Server.Resume(soon(t)))
		s.moved(d.Server)
		s.after()
		s.check(everything...)
	})
}

// awaitRecovery returns when the server has another process in the place of one that was killed.
func awaitRecovery(t *testing.T, d *pgtest.Database, was int) {
	t.Helper()
	ctx := soon(t)
	for {
		now := 0
		conn, err := pgx.Connect(ctx, d.URL)
		if err == nil {
			err = conn.QueryRow(ctx, `SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'`).Scan(&now)
			err = errors.Join(err, conn.Close(ctx))
		}
		if err == nil && now != was {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("the server has not recovered: %v", err)
		}
		time.Sleep(10 * time.Millisecond) // nothing says when it has
	}
}
