package pglock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// What a former holder does late, not knowing that it has lost the lock, and what has become of the lock meanwhile.
var successions = map[string]func(t *testing.T, d *pgtest.Database, c *pglock.Client){
	"held by the next": func(t *testing.T, _ *pgtest.Database, c *pglock.Client) { take(t, c, "a") },
	"held by the next but one": func(t *testing.T, _ *pgtest.Database, c *pglock.Client) {
		release(t, take(t, c, "a"))
		take(t, c, "a")
	},
	"left by the next": func(t *testing.T, _ *pgtest.Database, c *pglock.Client) { release(t, take(t, c, "a")) },
	"lapsed under the next": func(t *testing.T, d *pgtest.Database, c *pglock.Client) {
		take(t, c, "a", pglock.NoRenewal())
		d.Age(t, "a", time.Minute)
	},
	"planted anew by the next": func(t *testing.T, d *pgtest.Database, c *pglock.Client) {
		d.Exec(t, `DELETE FROM pglock.leases`)
		take(t, c, "a")
	},
}

// formerHolder returns a lease whose holder believes in it, while the lock has moved on.
func formerHolder(t *testing.T, d *pgtest.Database, next func(*testing.T, *pgtest.Database, *pglock.Client), rival bool) *pglock.Lease {
	t.Helper()
	cfg := pglock.Config{Owner: "the same label"}
	c := open(t, d.URL, cfg)
	l := take(t, c, "a", pglock.NoRenewal())
	d.Age(t, "a", time.Minute)
	if rival {
		c = open(t, d.URL, cfg)
	}
	next(t, d, c)
	if !l.Valid() {
		t.Fatalf("the former holder knows already: %v", l.Err())
	}
	return l
}

// over all that may have happened, in the same process or in another.
func eachSuccession(t *testing.T, f func(t *testing.T, d *pgtest.Database, former *pglock.Lease)) {
	for what, next := range successions {
		for who, rival := range map[string]bool{"this client": false, "another client": true} {
			t.Run(what+", "+who, func(t *testing.T) {
				t.Parallel()
				d := pgtest.DB(t)
				f(t, d, formerHolder(t, d, next, rival))
			})
		}
	}
}

func TestALateReleaseNeverTouchesTheNextHolder(t *testing.T) {
	t.Parallel()
	eachSuccession(t, func(t *testing.T, d *pgtest.Database, former *pglock.Lease) {
		before := row(t, d, "a")
		err := former.Release(soon(t))
		var lost *pglock.LostError
		if !errors.As(err, &lost) || lost.Cause != pglock.Taken {
			t.Errorf("Release = %v, want a loss because it was taken", err)
		}
		if after := row(t, d, "a"); after != before {
			t.Errorf("a late release changed the row from\n%s to\n%s", before, after)
		}
	})
}

func TestALateRenewalNeverTakesTheLockBack(t *testing.T) {
	t.Parallel()
	eachSuccession(t, func(t *testing.T, d *pgtest.Database, former *pglock.Lease) {
		before := row(t, d, "a")
		wantErr(t, "Renew", former.Renew(soon(t)), pglock.ErrLost)
		wantLoss(t, former, pglock.Taken)
		if after := row(t, d, "a"); after != before {
			t.Errorf("a late renewal changed the row from\n%s to\n%s", before, after)
		}
		d.Age(t, "a", time.Minute)
		if next := take(t, client(t, d), "a"); next.Token() <= former.Token() {
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
