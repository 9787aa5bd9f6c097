package pglock_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// anyOf is the URL of whichever of two servers is the primary.
func anyOf(t *testing.T, a, b *pgtest.Database) string {
	t.Helper()
	u, err := url.Parse(a.URL)
	if err != nil {
		t.Fatal(err)
	}
	other, err := url.Parse(b.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.Host += "," + other.Host
	return with(t, u.String(), "target_session_attrs", "read-write")
}

// cutOff lets no standby follow any more: of pg_hba.conf, only what clients need is left.
func cutOff(t *testing.T, primary *pgtest.Database) {
	t.Helper()
	before := pgtest.Query[time.Time](t, primary, `SELECT pg_conf_load_time()`)
	file := pgtest.Query[string](t, primary, `SELECT quote_literal(current_setting('hba_file'))`)
	primary.Exec(t, `COPY (SELECT 'host all all 127.0.0.1/32 trust') TO `+file)
	primary.Exec(t, `SELECT pg_reload_conf()`)
	primary.WaitFor(t, `SELECT pg_conf_load_time() > $1`, before)
	primary.Exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_replication`)
	primary.WaitFor(t, `SELECT NOT EXISTS (SELECT FROM pg_stat_replication)`)
}

// A primary crashes, and an asynchronous standby takes over that has one lease and not the other.
func TestFailoverKeepsWhatWasReplicatedAndGrantsNothingThatMayStillBeTrusted(t *testing.T) {
	t.Parallel()
	const ttlCap = 4 * time.Second
	primary, standby := pgtest.Standby(t)
	primary.Exec(t, `UPDATE pglock.guard SET cap_us = $1`, ttlCap.Microseconds())
	c := open(t, anyOf(t, primary, standby), pglock.Config{TTL: ttlCap})
	survivor := take(t, c, "survivor")
	standby.WaitReplayed(t, primary)
	cutOff(t, primary)
	forgotten := take(t, c, "forgotten", pglock.NoRenewal())
	atCrash := time.Now()

	if err := primary.Server.Halt(t.Context(), pgtemp.Immediate); err != nil {
		t.Fatal(err)
	}
	if err := standby.Server.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}

	other := open(t, anyOf(t, primary, standby), pglock.Config{TTL: ttlCap})
	for _, client := range []*pglock.Client{c, other} {
		_, err := client.TryAcquire(soon(t), "forgotten")
		wantErr(t, "a new grant right after the failover", err, pglock.ErrHeldBack)
	}
	next := granted(t, acquiring(soon(t), other, "forgotten"))
	if forgotten.Valid() {
		t.Errorf("%v was granted while %v is trusted", next, forgotten)
	}
	if held := time.Since(atCrash); held < ttlCap {
		t.Errorf("new grants were held back for %v, want the cap of %v at least", held, ttlCap)
	}
	if next.Token() <= forgotten.Token() {
		t.Errorf("token %d was granted after %d", next.Token(), forgotten.Token())
	}
	wantErr(t, "the lease that was replicated", survivor.Err(), nil) // more than a TTL later: renewed on the new primary
	if err := survivor.Renew(soon(t)); err != nil {
		t.Errorf("Renew of %v: %v", survivor, err)
	}
	refused(t, other, "survivor")
	release(t, survivor)
	release(t, next)
}
