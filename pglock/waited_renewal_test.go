package pglock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// answerRequests does the work line's part: each asking has its answer after a time on the way.
func answerRequests(c *Client, way time.Duration, db func() reply) {
	c.routines.Go(func() {
		for {
			select {
			case <-c.work.wake:
			case <-c.dialer.life.Done():
				return
			}
			b, _, _ := c.work.gather()
			for _, r := range b.requests {
				r.firstSent = c.clock.now()
				a := db()
				a.sent = r.firstSent
				time.Sleep(way)
				c.work.deliver(r, a)
			}
		}
	})
}

func TestTheFirstRenewalIsCountedFromTheAskingThatWasGrantedNotFromTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl, wait, way = 9 * time.Second, 90 * time.Second, 500 * time.Millisecond
		var renewals []time.Time
		c, _ := hold(t, func(ctx context.Context, due []*Lease) ([]answer, error) {
			renewals = append(renewals, time.Now())
			return renewAll(ctx, due)
		}, ttl, 0)
		c.closing = c.dialer.life
		free := time.Now().Add(wait)
		var sent time.Time // of the asking that was answered last
		answerRequests(c, way, func() reply {
			sent = time.Now()
			if left := free.Sub(sent); left > 0 {
				return reply{status: "held", remaining: left}
			}
			return reply{status: "granted", token: 1, remaining: ttl}
		})

		l, err := c.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		granted := sent
		time.Sleep(ttl)
		synctest.Wait()

		if !l.Valid() {
			t.Errorf("lost: %v", l.Err())
		}
		if granted.Before(free) {
			t.Errorf("granted %v before the lock was free", free.Sub(granted))
		}
		for i, at := range renewals {
			if want := time.Duration(i+1) * ttl / 3; at.Sub(granted) != want {
				t.Errorf("renewal %d is asked for %v after the asking that was granted, want %v", i+1, at.Sub(granted), want)
			}
		}
		if len(renewals) != 3 {
			t.Errorf("%d renewals in %v, want one in each third", len(renewals), ttl)
		}
	})
}
