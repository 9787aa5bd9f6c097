package pglock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// heldBack checks that nothing is granted, though nobody holds the lock.
func heldBack(t *testing.T, c *pglock.Client, name string, atMost time.Duration) {
	t.Helper()
	_, err := c.TryAcquire(soon(t), name)
	var back *pglock.HeldBackError
	if !errors.As(err, &back) || !errors.Is(err, pglock.ErrHeldBack) || errors.Is(err, pglock.ErrHeld) {
		t.Fatalf("TryAcquire = %v, want a *HeldBackError", err)
	}
	if back.Name != name || back.Remaining <= 0 || back.Remaining > atMost {
		t.Errorf("held back: %+v, want at most %v", back, atMost)
	}
}

func TestNewGrantsAreHeldBackAfterARestartAndLeasesLiveOn(t *testing.T) {
	t.Parallel()
	const longest = 4 * time.Second
	s, d := pgtest.OwnServer(t, pgtemp.Options{Durable: true})
	d.Exec(t, `UPDATE pglock.guard SET cap_us = $1`, longest.Microseconds()+time.Minute.Microseconds())
	for what, mode := range map[string]pgtemp.Mode{"orderly": pgtemp.Fast, "crash": pgtemp.Immediate} {
		t.Run(what, func(t *testing.T) {
			c := client(t, d)
			a, b := what+" a", what+" b"
			l := take(t, c, a, pglock.TTL(time.Minute))
			released := take(t, c, b)
			release(t, released)

			if err := s.Restart(slow(t), mode); err != nil {
				t.Fatal(err)
			}

			wantErr(t, "Renew after the restart", l.Renew(soon(t)), nil) // while nothing is granted
			heldBack(t, c, b, longest+time.Minute)
			heldBack(t, client(t, d), b, longest+time.Minute)
			heldBack(t, client(t, d), what+" never used", longest+time.Minute)
			waiting := acquiring(soon(t), c, b)
			passes(t, d, 500*time.Millisecond)
			select {
			case got := <-waiting:
				t.Fatalf("Acquire came back during the hold: %v, %v", got.lease, got.err)
			default:
			}
			d.Exec(t, `UPDATE pglock.guard SET no_grants_before = 'epoch'`) // as time would
			if next := take(t, client(t, d), what+" c"); next.Token() <= released.Token() || next.Token() <= l.Token() {
				t.Errorf("token %d after %d and %d", next.Token(), l.Token(), released.Token())
			}
			stillHeld(t, d, l)
			_ = waiting // sleeps until the hold it was told of would end: Close ends it
		})
	}
}

func TestAcquireWaitsThroughTheHoldAfterARestart(t *testing.T) {
	t.Parallel()
	const longest = 2 * time.Second
	s, d := pgtest.OwnServer(t, pgtemp.Options{Durable: true})
	d.Exec(t, `UPDATE pglock.guard SET cap_us = $1`, longest.Microseconds())
	c := open(t, d.URL, pglock.Config{TTL: longest})
	first := take(t, c, "a", pglock.NoRenewal())
	if err := s.Restart(slow(t), pgtemp.Fast); err != nil {
		t.Fatal(err)
	}
	up := pgtest.Query[time.Time](t, d, `SELECT pg_postmaster_start_time()`)

	l := granted(t, acquiring(soon(t), c, "a"))

	if since := pgtest.Query[time.Time](t, d, `SELECT granted_at FROM pglock.leases`); since.Before(up.Add(longest)) {
		t.Errorf("granted %v after the server came up, the hold is %v", since.Sub(up), longest)
	}
	if l.Token() <= first.Token() {
		t.Errorf("token %d after %d", l.Token(), first.Token())
	}
}

// Nothing can have been granted while the only server was off. How long that was, only an orderly end tells.
func TestASingleNodeThatWasOffLongerThanTheCapGrantsAtOnce(t *testing.T) {
	t.Parallel()
	const longest = 2 * time.Second
	s, d := pgtest.OwnServer(t, pgtemp.Options{Durable: true})
	d.Exec(t, `UPDATE pglock.guard SET single_node = true, cap_us = $1`, longest.Microseconds())
	before := take(t, open(t, d.URL, pglock.Config{TTL: longest}), "a", pglock.NoRenewal())
	if err := s.Halt(slow(t), pgtemp.Fast); err != nil {
		t.Fatal(err)
	}
	<-time.NewTimer(longest + 1100*time.Millisecond).C // the server notes whole seconds
	if err := s.Resume(slow(t)); err != nil {
		t.Fatal(err)
	}
	c := open(t, d.URL, pglock.Config{TTL: longest})
	l := take(t, c, "a")
	if l.Token() <= before.Token() {
		t.Errorf("token %d after %d", l.Token(), before.Token())
	}
	release(t, l)

	if err := s.Restart(slow(t), pgtemp.Immediate); err != nil {
		t.Fatal(err)
	}
	if _, err := c.TryAcquire(soon(t), "a"); err != nil && !errors.Is(err, pglock.ErrHeldBack) { // the start itself may have taken the cap's time
		t.Error(err)
	}
	if !pgtest.Query[bool](t, d, `SELECT no_grants_before = pg_postmaster_start_time() + interval '2 s' FROM pglock.guard`) {
		t.Error("after a crash the hold does not count from the start of the server")
	}
}

// A copy of a database, a restored backup say, has the leases of the original, but their holders are the original's.
func TestNewGrantsAreHeldBackInACopyOfTheDatabase(t *testing.T) {
	t.Parallel()
	d := pgtest.Copy(t)
	heldBack(t, client(t, d), "a", 30*time.Second)
	d.Exec(t, `UPDATE pglock.guard SET no_grants_before = 'epoch'`)
	take(t, client(t, d), "a")
}
