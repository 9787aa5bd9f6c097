package failover

import (
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/history"
	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// A run has two loads on one server at once, with the guard and without, and makes the same things happen to both.
type run struct {
	*testing.T
	db      *pgtest.Database // on the primary of now
	service *pgtest.Relay
	guarded *load
	control *load
}

func startRun(t *testing.T, server map[string]string, session string) *run {
	t.Helper()
	d := newServer(t, loadCap, server)
	r := &run{T: t, db: d, service: pgtest.NewRelay(t, d.Server)}
	r.guarded = startLoad(t, r.service.URL(d)+session, guarded, loadCap)
	r.control = startLoad(t, r.service.URL(d)+session, unguarded, loadCap)
	return r
}

// grants waits for so many in both loads.
func (r *run) grants(n int) {
	r.Helper()
	r.guarded.grants(n)
	r.control.grants(n)
}

// failOver lets the standby fall behind for some grants, loses the primary, and makes the standby the next one.
func (r *run) failOver(standby *pgtest.Replica) {
	r.Helper()
	r.grants(15)
	standby.Way.Freeze()
	r.lose(standby)
}

func (r *run) lose(standby *pgtest.Replica) {
	r.Helper()
	r.control.grants(10)
	do(r.T, "Kill", r.db.Server.Kill())
	standby.Way.Cut()
	do(r.T, "Promote", standby.Server.Promote(soon(r.T)))
	r.service.To(standby.Server)
	do(r.T, "Stop", r.db.Server.Stop())
	r.db = standby.Database
	r.grants(5)
}

// check judges the guarded load. Without the guard, a long run must have shown what it is there for.
func (r *run) check(events int, harm bool) {
	r.Helper()
	guarded, control := r.guarded.found(), r.control.found()
	r.Logf("%d events, guard on:  %s", events, kinds(guarded))
	r.Logf("%d events, guard off: %s", events, kinds(control))
	if err := guarded.Err(); err != nil {
		r.Error(err)
	}
	overlaps := 0
	for _, v := range control.Violations {
		if v.Kind == history.OverlappingTrust {
			overlaps++
		}
	}
	if harm && events >= 10 && overlaps == 0 {
		r.Error("no overlap without the guard: the run proves nothing")
	}
}

func TestFailoverUnderLoad(t *testing.T) {
	t.Parallel()
	r := startRun(t, nil, "")
	events := pgtest.Rounds(1, 20)
	for range events {
		r.failOver(r.db.Replica(t, pgtemp.StandbyOptions{}))
	}
	r.check(events, true)
}

// rare is how often an event happens under load: the stories show the same in the short mode.
func rare(t *testing.T) int {
	t.Helper()
	n := pgtest.Rounds(0, 10)
	if n == 0 {
		t.Skip("runs under PGLOCK_LONG=1")
	}
	return n
}

func TestFailoverUnderLoadToAStandbyWithAnotherClock(t *testing.T) {
	events := rare(t)
	pgtest.NeedClock(t)
	r := startRun(t, nil, "")
	for i := range events {
		r.failOver(r.db.Replica(t, pgtemp.StandbyOptions{Clock: []time.Duration{-5 * time.Second, 0, 5 * time.Second, 0}[i%4]}))
	}
	r.check(events, false)
}

// Two standbys are promoted one after the other, and the second has seen nothing of the first.
func TestFailoverUnderLoadTwiceInARow(t *testing.T) {
	events := rare(t)
	r := startRun(t, nil, "")
	for range events {
		first := r.db.Replica(t, pgtemp.StandbyOptions{Name: "first"})
		second := r.db.Replica(t, pgtemp.StandbyOptions{Name: "second"})
		second.Way.Freeze()
		r.failOver(first)
		r.lose(second)
	}
	r.check(events, true)
}

// While its standby cannot be reached, a primary tells nobody of a grant.
func TestFailoverUnderLoadToASynchronousStandby(t *testing.T) {
	events := rare(t)
	r := startRun(t, nil, synchronously)
	for range events {
		standby := r.db.Replica(t, pgtemp.StandbyOptions{})
		r.db.Exec(t, `ALTER SYSTEM SET synchronous_standby_names = 'standby'`)
		r.db.Exec(t, `SELECT pg_reload_conf()`)
		r.db.WaitFor(t, `SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')`)
		r.grants(15)
		standby.Way.Freeze()
		r.db.WaitFor(t, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')`)
		do(t, "Kill", r.db.Server.Kill())
		standby.Way.Cut()
		do(t, "Promote", standby.Server.Promote(soon(t)))
		r.service.To(standby.Server)
		do(t, "Stop", r.db.Server.Stop())
		r.db = standby.Database
		r.grants(5)
	}
	r.check(events, false)
}

// A server that acknowledges commits before they are on the disk crashes, as a whole or one process of it.
func TestFailoverUnderLoadByACrashThatLosesAsynchronousCommits(t *testing.T) {
	events := rare(t)
	for what, crash := range map[string]func(r *run){
		"of the server": func(r *run) { do(r.T, "Restart", r.db.Server.Restart(soon(r.T), pgtemp.Immediate)) },
		"of a backend": func(r *run) {
			do(r.T, "KillProcess", r.db.Server.KillProcess(pgtest.Query[int](r.T, r.db,
				`SELECT pid FROM pg_stat_activity WHERE application_name = 'pglock' LIMIT 1`)))
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := startRun(t, map[string]string{"wal_writer_delay": "1s"}, "")
			for range events {
				r.grants(15)
				crash(r)
				r.grants(5)
			}
			r.check(events, true)
		})
	}
}
