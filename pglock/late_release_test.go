package pglock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// What a former holder does late, not knowing that it has lost the lock, and what has become of the lock meanwhile.
var successions = map[string]func(t *testing.T, d *pgtest.Database, c *pglock.Client, name string){
	"held by the next": func(t *testing.T, _ *pgtest.Database, c *pglock.Client, name string) { take(t, c, name) },
	"held by the next but one": func(t *testing.T, _ *pgtest.Database, c *pglock.Client, name string) {
		release(t, take(t, c, name))
		take(t, c, name)
	},
	"left by the next": func(t *testing.T, _ *pgtest.Database, c *pglock.Client, name string) { release(t, take(t, c, name)) },
	"lapsed under the next": func(t *testing.T, d *pgtest.Database, c *pglock.Client, name string) {
		take(t, c, name, pglock.NoRenewal())
		d.Age(t, name, time.Minute)
	},
	"planted anew by the next": func(t *testing.T, d *pgtest.Database, c *pglock.Client, name string) {
		d.Exec(t, `DELETE FROM pglock.leases WHERE name = $1`, name)
		take(t, c, name)
	},
}

// over all that may have happened, in the same process or in another: a lease whose holder believes in it, while the lock has
// moved on. Each has a lock of its own, and all have two clients.
func eachSuccession(t *testing.T, f func(t *testing.T, d *pgtest.Database, former *pglock.Lease, rival *pglock.Client)) {
	d := pgtest.DB(t)
	cfg := pglock.Config{Owner: "the same label"}
	holder, rival := open(t, d.URL, cfg), open(t, d.URL, cfg)
	for what, next := range successions {
		for who, c := range map[string]*pglock.Client{"this client": holder, "another client": rival} {
			name := what + ", " + who
			t.Run(name, func(t *testing.T) {
				former := take(t, holder, name, pglock.NoRenewal())
				d.Age(t, name, time.Minute)
				next(t, d, c, name)
				if !former.Valid() {
					t.Fatalf("the former holder knows already: %v", former.Err())
				}
				f(t, d, former, rival)
			})
		}
	}
}

func TestALateReleaseNeverTouchesTheNextHolder(t *testing.T) {
	t.Parallel()
	eachSuccession(t, func(t *testing.T, d *pgtest.Database, former *pglock.Lease, _ *pglock.Client) {
		before := row(t, d, former.Name())
		err := former.Release(soon(t))
		var lost *pglock.LostError
		if !errors.As(err, &lost) || lost.Cause != pglock.Taken {
			t.Errorf("Release = %v, want a loss because it was taken", err)
		}
		if after := row(t, d, former.Name()); after != before {
			t.Errorf("a late release changed the row from\n%s to\n%s", before, after)
		}
	})
}

func TestALateRenewalNeverTakesTheLockBack(t *testing.T) {
	t.Parallel()
	eachSuccession(t, func(t *testing.T, d *pgtest.Database, former *pglock.Lease, rival *pglock.Client) {
		before := row(t, d, former.Name())
		wantErr(t, "Renew", former.Renew(soon(t)), pglock.ErrLost)
		wantLoss(t, former, pglock.Taken)
		if after := row(t, d, former.Name()); after != before {
			t.Errorf("a late renewal changed the row from\n%s to\n%s", before, after)
		}
		d.Age(t, former.Name(), time.Minute)
		if next := take(t, rival, former.Name()); next.Token() <= former.Token() {
			t.Errorf("token %d after %d", next.Token(), former.Token())
		}
	})
}

func TestALateRenewalDoesNotReviveAnExpiredLease(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	l := take(t, client(t, d), "a", pglock.NoRenewal())
	d.Age(t, "a", pglock.DefaultTTL)
	before := row(t, d, "a")

	wantErr(t, "Renew", l.Renew(soon(t)), pglock.ErrLost)

	wantLoss(t, l, pglock.Expired)
	if after := row(t, d, "a"); after != before {
		t.Errorf("a late renewal changed the row from\n%s to\n%s", before, after)
	}
}
