package failover

import (
	"slices"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/history"
	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

// A run has loads on one server, usually with the guard and without at once, and makes the same things happen to both.
type run struct {
	*testing.T
	db      *pgtest.Database // on the primary of now
	service *pgtest.Relay
	loads   map[string]*load // by schema
}

func startRun(t *testing.T, server map[string]string, session string, schemas ...string) *run {
	t.Helper()
	d := newServer(t, loadCap, server)
	r := &run{T: t, db: d, service: pgtest.NewRelay(t, d.Server), loads: map[string]*load{}}
	for _, schema := range schemas {
		r.loads[schema] = startLoad(t, r.service.URL(d)+session, schema, loadCap)
	}
	return r
}

// grants waits for so many in each load.
func (r *run) grants(n int) {
	r.Helper()
	for _, l := range r.loads {
		l.grants(n)
	}
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
	r.grants(10)
	do(r.T, "Kill", r.db.Server.Kill())
	standby.Way.Cut()
	do(r.T, "Promote", standby.Server.Promote(soon(r.T)))
	r.service.To(standby.Server)
	do(r.T, "Stop", r.db.Server.Stop())
	r.db = standby.Database
	r.grants(5)
}

// nothing is what a run need not show without the guard: a slow machine is down for longer than its clients trust their leases,
// and the stories show it anyway.
const nothing history.Kind = ""

// check judges the guarded load. Without the guard, a long run must have shown the harm that it is there for.
func (r *run) check(events int, harm history.Kind) {
	r.Helper()
	for schema, l := range r.loads {
		found := l.found()
		r.Logf("%d events, schema %s: %s", events, schema, kinds(found))
		harmed := slices.ContainsFunc(found.Violations, func(v history.Violation) bool { return v.Kind == harm })
		switch err := found.Err(); {
		case schema == guarded && err != nil:
			r.Error(err)
		case schema == unguarded && harm != nothing && events >= 10 && !harmed:
			r.Errorf("no %s without the guard: the run proves nothing", harm)
		}
	}
}

func TestFailoverUnderLoad(t *testing.T) {
	t.Parallel()
	r := startRun(t, nil, "", guarded, unguarded)
	events := pgtest.Rounds(1, 20)
	for range events {
		r.failOver(r.db.Replica(t, pgtemp.StandbyOptions{}))
	}
	r.check(events, history.OverlappingTrust)
}

// rare begins a parallel test, and answers how often its event happens: the stories show the same in the short mode.
func rare(t *testing.T) int {
	t.Helper()
	n := pgtest.Rounds(0, 10)
	if n == 0 {
		t.Skip("runs under PGLOCK_LONG=1")
	}
	t.Parallel()
	return n
}

func TestFailoverUnderLoadToAStandbyWithAnotherClock(t *testing.T) {
	events := rare(t)
	pgtest.NeedClock(t)
	r := startRun(t, nil, "", guarded, unguarded)
	for i := range events {
		r.failOver(r.db.Replica(t, pgtemp.StandbyOptions{Clock: []time.Duration{-5 * time.Second, 0, 5 * time.Second, 0}[i%4]}))
	}
	r.check(events, history.RepeatedToken)
}

// Two standbys are promoted one after the other, and the second has seen nothing of the first.
func TestFailoverUnderLoadTwiceInARow(t *testing.T) {
	events := rare(t)
	r := startRun(t, nil, "", guarded, unguarded)
	for range events {
		first := r.db.Replica(t, pgtemp.StandbyOptions{Name: "first"})
		second := r.db.Replica(t, pgtemp.StandbyOptions{Name: "second"})
		second.Way.Freeze()
		r.failOver(first)
		r.lose(second)
	}
	r.check(events, history.RepeatedToken)
}

// While its standby cannot be reached, a primary tells nobody of a grant.
func TestFailoverUnderLoadToASynchronousStandby(t *testing.T) {
	events := rare(t)
	r := startRun(t, nil, synchronously, guarded, unguarded)
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
	r.check(events, nothing)
}

// A server that acknowledges commits before they are on the disk crashes, as a whole or one process of it. Grants under the guard
// would flush those without it, so each load has a server of its own.
func TestFailoverUnderLoadByACrashThatLosesAsynchronousCommits(t *testing.T) {
	events := rare(t)
	for what, crash := range map[string]func(r *run){
		"of the server": func(r *run) { do(r.T, "Restart", r.db.Server.Restart(soon(r.T), pgtemp.Immediate)) },
		"of a backend": func(r *run) {
			do(r.T, "KillProcess", r.db.Server.KillProcess(pgtest.Query[int](r.T, r.db,
				`SELECT pid FROM pg_stat_activity WHERE application_name = 'pglock' LIMIT 1`)))
		},
	} {
		for _, schema := range []string{guarded, unguarded} {
			t.Run(what+"/"+schema, func(t *testing.T) {
				t.Parallel()
				r := startRun(t, map[string]string{"wal_writer_delay": "1s"}, "", schema)
				for range events {
					r.grants(15)
					crash(r)
					r.grants(5)
				}
				r.check(events, nothing)
			})
		}
	}
}
