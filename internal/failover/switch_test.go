package failover

import (
	"net/url"
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// anyOf is the URL of whichever of two servers is the primary.
func anyOf(t *testing.T, a, b *pgtest.Database) string {
	t.Helper()
	first, err := url.Parse(a.URL)
	do(t, "URL", err)
	second, err := url.Parse(b.URL)
	do(t, "URL", err)
	first.Host += "," + second.Host
	query := first.Query()
	query.Set("target_session_attrs", "read-write")
	first.RawQuery = query.Encode()
	return first.String()
}

// An orderly switch-over: the old primary comes back as a standby. Who knows both finds the new one. Who knows only the old one
// is told, lets go of it, and finds the new one as soon as the address leads there.
func TestFailoverByASwitchOverAndBack(t *testing.T) {
	t.Parallel()
	d := newServer(t, long, nil)
	other := d.Replica(t, pgtemp.StandbyOptions{}).Database
	service := pgtest.NewRelay(t, d.Server)
	knows := open(t, anyOf(t, d, other), guarded, "knows both")
	stale := open(t, service.URL(d), guarded, "knows one")
	held, err := knows.TryAcquire(soon(t), "held")
	do(t, "TryAcquire", err)
	l, err := stale.TryAcquire(soon(t), "a")
	do(t, "TryAcquire", err)
	do(t, "Release", l.Release(soon(t)))
	last := l.Token()

	for from, to := d, other; ; from, to = other, d {
		do(t, "Halt", from.Server.Halt(soon(t), pgtemp.Fast)) // it waits until the standby has everything
		do(t, "Promote", to.Server.Promote(soon(t)))
		do(t, "Follow", from.Server.Follow(to.Server, pgtemp.StandbyOptions{}))
		do(t, "Resume", from.Server.Resume(soon(t)))

		do(t, "Renew on the new primary", renew(t, held))
		_, err = stale.TryAcquire(soon(t), "a")
		wantErr(t, "TryAcquire on the old primary", err, pglock.ErrReadOnly)
		from.WaitFor(t, `SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'pglock')`)
		_, err = knows.TryAcquire(soon(t), "a")
		wantErr(t, "TryAcquire on the new primary", err, pglock.ErrHeldBack)
		to.Exec(t, `SELECT pglock.end_hold()`) // nothing was lost

		waiting := acquiring(soon(t), stale, "a")
		service.To(to.Server)
		got := <-waiting
		do(t, "Acquire once the address leads to the new primary", got.err)
		if got.lease.Token() <= last {
			t.Errorf("token %d after %d", got.lease.Token(), last)
		}
		last = got.lease.Token()
		do(t, "Release", got.lease.Release(soon(t)))
		_, err = stale.TryAcquire(soon(t), "held")
		wantErr(t, "TryAcquire of what is held", err, pglock.ErrHeld)
		if to == d {
			return
		}
		service.Cut()
	}
}
