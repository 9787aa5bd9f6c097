package pglock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// A lease that lapses because its renewals fail is lost with what they failed with: the log may be silent.
func TestALossSaysWhatTheLastRenewalFailedWith(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	role := d.Role(t)
	d.Exec(t, `SELECT pglock.grant_locker('`+role+`')`)
	d.Exec(t, `ALTER ROLE `+role+` CONNECTION LIMIT 1`)
	c := open(t, d.URLAs(role), pglock.Config{TTL: time.Second}) // it has one connection to acquire, and no other to renew
	l := take(t, c, "a")
	happens(t, "the lease is lost", l.Done())
	err := l.Err()
	lost, ok := errors.AsType[*pglock.LostError](err)
	if !ok || lost.Cause != pglock.Expired {
		t.Fatalf("Err = %v, want a LostError: expired", err)
	}
	refused, ok := errors.AsType[*pgconn.PgError](lost.Renewal)
	if !ok || refused.Code != "53300" || !strings.Contains(err.Error(), refused.Message) {
		t.Errorf("Err = %v, of a renewal that failed with %v, want the refusal of a second connection", err, lost.Renewal)
	}
	if errors.As(err, new(*pgconn.PgError)) {
		t.Errorf("%v matches what the renewal failed with", err)
	}

	quiet := take(t, client(t, d), "b", pglock.NoRenewal(), pglock.TTL(2*time.Second))
	happens(t, "the lease is over", quiet.Done())
	if lost, ok := errors.AsType[*pglock.LostError](quiet.Err()); !ok || lost.Renewal != nil {
		t.Errorf("Err = %v, want no renewal that failed", quiet.Err())
	}
}
