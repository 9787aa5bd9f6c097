package failover

import (
	"errors"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// The new primary has rows of leases that are over, and where its clock is behind they look alive. Their former holders do not
// renew them, and are not given them back: while who was granted them next trusts what no row tells of.
func TestFailoverGivesNobodyAnOldLeaseBack(t *testing.T) {
	repeatedly(t, func(t *testing.T) {
		d := newServer(t, long, nil)
		var o pgtemp.StandbyOptions
		if pgtemp.CheckClock() == nil {
			o.Clock = -5 * time.Second
		}
		standby := d.Replica(t, o)
		service := pgtest.NewRelay(t, d.Server)
		a, b := open(t, service.URL(d), guarded, "a"), open(t, service.URL(d), guarded, "b")
		take := func(c *pglock.Client, name string, opts ...pglock.Option) *pglock.Lease {
			t.Helper()
			l, err := c.Acquire(soon(t), name, append(opts, pglock.NoRenewal())...)
			do(t, "Acquire", err)
			return l
		}
		released, again, lapsed := take(a, "released"), take(a, "again"), take(a, "lapsed", pglock.TTL(time.Second))
		standby.WaitReplayed(t, d)
		standby.Way.Freeze()
		<-lapsed.Done()
		do(t, "Release", errors.Join(released.Release(soon(t)), again.Release(soon(t))))
		anew := take(a, "again")
		next := []*pglock.Lease{take(b, "released"), take(b, "lapsed"), take(b, "new")}

		do(t, "Kill", d.Server.Kill())
		standby.Way.Cut()
		do(t, "Promote", standby.Server.Promote(soon(t)))
		service.To(standby.Server)
		const rows = `SELECT string_agg(concat(name, token, acquisition, expires_at), ' ' ORDER BY name) FROM pglock.leases`
		_, err := a.TryAcquire(soon(t), "new")
		wantErr(t, "TryAcquire", err, pglock.ErrHeldBack)
		before := pgtest.Query[string](t, standby.Database, rows)

		wantErr(t, "Renew of what was released", renew(t, released), pglock.ErrReleased)
		var lost *pglock.LostError
		if err := renew(t, lapsed); !errors.As(err, &lost) || lost.Cause != pglock.Expired {
			t.Errorf("Renew of what has lapsed: %v, want a loss because it expired", err)
		}
		wantErr(t, "Renew of a grant that no row tells of, beside an older one of the same client", renew(t, anew), pglock.ErrLost)
		for _, l := range next {
			wantErr(t, "Renew of a grant that no row tells of", renew(t, l), pglock.ErrLost)
		}
		standby.Exec(t, `SELECT pglock.end_hold()`)
		_, err = a.TryAcquire(soon(t), "released")
		wantErr(t, "TryAcquire by the client whose old lease it is", err, pglock.ErrHeld)
		if after := pgtest.Query[string](t, standby.Database, rows); after != before {
			t.Errorf("the rows were\n%s and are\n%s", before, after)
		}
	})
}

// A server that comes up without its synchronous standby grants nothing, but renews.
func TestFailoverToALonelyServerHoldsUpNoRenewal(t *testing.T) {
	repeatedly(t, func(t *testing.T) {
		d := newServer(t, long, nil)
		service := pgtest.NewRelay(t, d.Server)
		c := open(t, service.URL(d)+synchronously+"&application_name=lonely", guarded, "holder")
		held, err := c.TryAcquire(soon(t), "held")
		do(t, "TryAcquire", err)
		do(t, "Halt", d.Server.Halt(soon(t), pgtemp.Fast))
		do(t, "Set", d.Server.Set(map[string]string{"synchronous_standby_names": "nobody"}))
		do(t, "Resume", d.Server.Resume(soon(t)))

		renewed := make(chan error, 1)
		go func() { renewed <- renew(t, held) }()
		for {
			select {
			case err := <-renewed:
				do(t, "Renew", err)
				return
			default:
			}
			if pgtest.Query[bool](t, d, hanging, "lonely") {
				t.Error("the renewal waits for a standby")
				do(t, "Kill", d.Server.Kill())
				return
			}
		}
	})
}
