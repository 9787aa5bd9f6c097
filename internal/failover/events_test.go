package failover

import (
	"fmt"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/history"
	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// everything is what a server that has lost its last grants does wrong without a guard.
var everything = []history.Kind{history.OverlappingTrust, history.RepeatedToken, history.FallingToken}

// repeatedly tells a story once, or ten times in the long mode, each time on servers of its own.
func repeatedly(t *testing.T, story func(*testing.T)) {
	t.Parallel()
	for i := range pgtest.Rounds(1, 10) {
		t.Run(fmt.Sprint(i), story)
	}
}

// flush puts every commit before it on the disk.
func flush(t *testing.T, d *pgtest.Database) {
	t.Helper()
	d.Exec(t, `SET synchronous_commit = local; SELECT pg_logical_emit_message(true, 'flush', '')`)
}

func TestFailoverToAStandbyThatLagsBehind(t *testing.T) {
	repeatedly(t, func(t *testing.T) {
		s := newStory(t, nil)
		standby := s.db.Replica(t, pgtemp.StandbyOptions{})
		s.before()
		standby.WaitReplayed(t, s.db)
		standby.Way.Freeze()
		s.tail()
		s.failOver(standby)
		s.after()
		s.check(everything...)
	})
}

// The second standby has seen nothing of what the first one granted, and both come from one timeline.
func TestFailoverToTwoStandbysInTurnThatShareNoHistory(t *testing.T) {
	repeatedly(t, func(t *testing.T) {
		s := newStory(t, nil)
		first, second := s.db.Replica(t, pgtemp.StandbyOptions{Name: "first"}), s.db.Replica(t, pgtemp.StandbyOptions{Name: "second"})
		s.before()
		first.WaitReplayed(t, s.db)
		second.WaitReplayed(t, s.db)
		first.Way.Freeze()
		second.Way.Freeze()
		s.tail()
		s.failOver(first)
		s.after()

		s.each((*side).begin)
		s.tail()
		s.failOver(second)
		s.after()
		s.check(everything...)
	})
}

func TestFailoverBackToAnOldPrimaryAsItWas(t *testing.T) {
	repeatedly(t, func(t *testing.T) {
		s := newStory(t, nil)
		standby := s.db.Replica(t, pgtemp.StandbyOptions{})
		s.before()
		standby.WaitReplayed(t, s.db)
		old := s.db.Server
		s.failOver(standby)
		s.db.Exec(t, `SELECT pglock.end_hold()`) // nothing was lost
		s.each((*side).begin)
		s.tail()

		do(t, "Kill", standby.Server.Kill())
		do(t, "Resume", old.Resume(soon(t)))
		s.moved(old)
		s.after()
		s.check(everything...)
	})
}

// A copy of the data folder is started in the place of the server: a snapshot of its disk, then a base backup, of which
// somebody has forgotten the standby file.
func TestFailoverToACopyOfTheDataFolder(t *testing.T) {
	repeatedly(t, func(t *testing.T) {
		s := newStory(t, nil)
		s.before()
		flush(t, s.db)
		snapshot, err := s.db.Server.Snapshot()
		do(t, "Snapshot", err)
		pgtest.Adopt(t, snapshot, "app")
		backup, err := s.db.Server.Backup(soon(t))
		do(t, "Backup", err)
		pgtest.Adopt(t, backup, "app")
		for _, copied := range []*pgtemp.Server{snapshot, backup} {
			s.tail()
			do(t, "Kill", s.db.Server.Kill())
			do(t, "Resume", copied.Resume(soon(t)))
			s.moved(copied)
			s.after()
			s.check(everything...)
			s.each((*side).begin)
		}
	})
}

// A clock that is behind makes leases look longer, one that is ahead makes them look shorter, and tokens come from the clock.
func TestFailoverToStandbysWithOtherClocks(t *testing.T) {
	pgtest.NeedClock(t)
	repeatedly(t, func(t *testing.T) {
		s := newStory(t, nil)
		behind := s.db.Replica(t, pgtemp.StandbyOptions{Name: "behind", Clock: -5 * time.Second})
		ahead := s.db.Replica(t, pgtemp.StandbyOptions{Name: "ahead", Clock: 5 * time.Second})
		s.before()
		for _, standby := range []*pgtest.Replica{behind, ahead} {
			standby.WaitReplayed(t, s.db)
			standby.Way.Freeze()
		}
		for _, standby := range []*pgtest.Replica{behind, ahead} {
			s.tail()
			s.failOver(standby)
			s.after()
			s.check(everything...)
			s.each((*side).begin)
		}
	})
}

// The hold begins with the promotion, however long the standby has been up, and although the control file names the old
// timeline until the next checkpoint: also where somebody has declared that there is no standby.
func TestFailoverToAStandbyThatWasUpForLongerThanTheCap(t *testing.T) {
	repeatedly(t, func(t *testing.T) {
		d := newServer(t, time.Second, nil)
		d.Exec(t, `UPDATE pglock.guard SET single_node = true`)
		standby := d.Replica(t, pgtemp.StandbyOptions{})
		standby.WaitFor(t, `SELECT clock_timestamp() > pg_postmaster_start_time() + '1 s'`)
		do(t, "FreezeProcess", standby.Server.FreezeProcess(pgtest.Query[int](t, standby.Database,
			`SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'`)))
		t.Cleanup(func() { do(t, "Thaw", standby.Server.Thaw()) })
		do(t, "Kill", d.Server.Kill())
		do(t, "Promote", standby.Server.Promote(soon(t)))
		promoted := pgtest.Query[time.Time](t, standby.Database, `SELECT clock_timestamp()`)

		const timeline = `SELECT timeline_id FROM pg_control_checkpoint()`
		if pgtest.Query[int](t, standby.Database, timeline) != 1 {
			t.Error("the control file names the new timeline: nothing is tested")
		}
		_, err := open(t, standby.URL, guarded, "next").Acquire(soon(t), "a", pglock.TTL(time.Second), pglock.NoRenewal())
		do(t, "Acquire", err)
		granted := pgtest.Query[time.Time](t, standby.Database, `SELECT granted_at FROM pglock.leases`)
		if granted.Before(promoted.Add(time.Second)) {
			t.Errorf("granted %v after the promotion, want the cap of 1 s at least", granted.Sub(promoted))
		}
	})
}
