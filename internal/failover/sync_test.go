package failover

import (
	"context"
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// synchronously asks for commits that wait for the standby; the server's own setting is off, so that tests need not wait.
const synchronously = "&synchronous_commit=on"

// hanging is a query for WaitFor: the commit of a session with that application_name waits for the standby.
const hanging = `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = $1)`

type result struct {
	lease *pglock.Lease
	err   error
}

// acquiring waits for a lock in the background.
func acquiring(ctx context.Context, c *pglock.Client, name string) <-chan result {
	done := make(chan result, 1)
	go func() {
		l, err := c.Acquire(ctx, name, pglock.NoRenewal())
		done <- result{l, err}
	}()
	return done
}

// Nothing that a client was told is lost, with a guard or without. What was granted on the old primary alone hangs, holds up
// no renewal, is told to nobody, and is asked for anew on the new one.
func TestFailoverToASynchronousStandby(t *testing.T) {
	repeatedly(t, func(t *testing.T) {
		s := newStory(t, map[string]string{"synchronous_standby_names": "standby"})
		standby := s.db.Replica(t, pgtemp.StandbyOptions{})
		s.db.WaitFor(t, `SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')`)
		s.each(func(s *side) { s.url += synchronously + "&application_name=" + s.schema })
		s.before()
		s.each(func(s *side) { s.lost, s.trusted = s.grant(s.open("other"), "other", "kept") })
		standby.Way.Freeze()
		waiting := map[*side]<-chan result{}
		ctx, cancel := context.WithCancel(soon(t))
		defer cancel()
		s.each(func(s *side) {
			waiting[s] = acquiring(ctx, s.open("waiting"), "lost")
			s.db.WaitFor(s.T, hanging, s.schema)
			do(s.T, "Renew beside a grant that hangs", renew(s.T, s.survivor))
			if !pgtest.Query[bool](s.T, s.db, hanging, s.schema) {
				s.Error("the grant does not hang: nothing is tested")
			}
		})
		s.failOver(standby)
		s.each(func(s *side) {
			next := s.open("next")
			if s.guard {
				_, err := next.TryAcquire(soon(s.T), "new")
				wantErr(s.T, "TryAcquire after the failover", err, pglock.ErrHeldBack)
				s.db.Exec(s.T, `SELECT pglock.end_hold()`)
			}
			_, err := next.TryAcquire(soon(s.T), "kept")
			wantErr(s.T, "TryAcquire of what the standby had", err, pglock.ErrHeld)
			do(s.T, "Renew of what the standby had", renew(s.T, s.survivor))
			s.takeMany(next)
		})
		got := <-waiting[s.sides[1]]
		do(t, "Acquire through the failover, where there is no guard", got.err)
		told(s.sides[1].record, "waiting", got.lease)
		cancel()
		if got = <-waiting[s.sides[0]]; got.err == nil { // it asked after the end of the hold only
			told(s.sides[0].record, "waiting", got.lease)
		} else {
			wantErr(t, "Acquire that waits for the end of the hold", got.err, context.Canceled)
		}
		s.check()
	})
}
