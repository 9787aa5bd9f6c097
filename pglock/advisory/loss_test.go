package advisory_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock/advisory"
)

// Case C10: the holder is told at once, though it is not the time to look: the next look would be a minute later.
func TestTheHolderIsToldWhenItsBackendIsTerminated(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	c := open(t, d.URL, advisory.Config{CheckEvery: time.Minute})
	l := take(t, c, advisory.Name("a"))
	d.Exec(t, `SELECT pg_terminate_backend($1)`, l.PID())
	if lost := lostIn(t, l); state(lost) != "57P01" {
		t.Errorf("the reason is %v", lost.Reason)
	}
	wantErr(t, "Release", l.Release(soon(t)), advisory.ErrLost)
	release(t, granted(t, acquiring(soon(t), client(t, d), advisory.Name("a")))) // the server may free it a moment later
}

func TestTheHolderIsToldWhenItsConnectionIsCut(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	p := pgtest.NewProxy(t, d)
	c := open(t, p.URL(), advisory.Config{CheckEvery: time.Minute})
	l := take(t, c, advisory.Name("a"))
	p.Cut()
	lostIn(t, l)
	release(t, granted(t, acquiring(soon(t), client(t, d), advisory.Name("a")))) // the server may free it a moment later
}

// A network that says nothing is found by asking.
func TestTheHolderIsToldWhenTheNetworkIsSilent(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	p := pgtest.NewProxy(t, d)
	c := open(t, p.URL(), advisory.Config{CheckEvery: 100 * time.Millisecond})
	l := take(t, c, advisory.Name("a"))
	p.Stall(pgtest.ToClient)
	lostIn(t, l)
	wantErr(t, "Release", l.Release(soon(t)), advisory.ErrLost)
	ctx, cancel := context.WithTimeout(context.Background(), patience/3)
	defer cancel()
	wantErr(t, "Close", c.Close(ctx), nil)
	wantErr(t, "it is done with the connection, at once", ctx.Err(), nil)
	p.Resume()
	d.WaitFor(t, noLocks)
}

// An administrator's timeout for idle sessions ends others, not the session of a lock.
func TestIdleTimeoutsAreKeptAway(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	d.Exec(t, `ALTER DATABASE `+d.Name+` SET idle_session_timeout = '100ms'`)
	c := open(t, d.URL, advisory.Config{CheckEvery: time.Minute}) // no look keeps it busy
	l := take(t, c, advisory.Name("a"))
	other, err := pgx.Connect(soon(t), d.URL)
	if err != nil {
		t.Fatal(err)
	}
	_, err = other.WaitForNotification(soon(t)) // it idles until it is ended
	if state(err) != "57P05" {
		t.Fatalf("a session of the same kind ends with %v", err)
	}
	wantErr(t, "Release", l.Release(soon(t)), nil)
}

// The server is told to find a vanished holder, and any role may tell it.
func TestTheServerLooksForVanishedHolders(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	role := d.Role(t)
	d.Exec(t, `ALTER ROLE `+role+` SET statement_timeout = '1ms'; ALTER ROLE `+role+` SET idle_session_timeout = '1s'`)
	for every, want := range map[time.Duration]map[string]string{
		0:                      {"tcp_keepalives_idle": "2", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "3", "tcp_user_timeout": "8000"},
		100 * time.Millisecond: {"tcp_keepalives_idle": "1", "tcp_keepalives_interval": "1", "tcp_keepalives_count": "3", "tcp_user_timeout": "4000"},
		2500 * time.Millisecond: {
			"tcp_keepalives_idle": "3", "tcp_user_timeout": "12000", "idle_session_timeout": "0", "statement_timeout": "10s",
			"application_name": "pglock/advisory",
		},
	} {
		names := make([]string, 0, len(want))
		for name := range want {
			names = append(names, name)
		}
		got, err := advisory.Settings(soon(t), open(t, d.URLAs(role), advisory.Config{CheckEvery: every}), names...)
		wantErr(t, "a session of an ordinary role", err, nil)
		for _, name := range names {
			if got[name] != want[name] {
				t.Errorf("every %v: %s is %q, want %q", every, name, got[name], want[name])
			}
		}
	}
}

// Do tells the loss, whatever the function makes of it.
func TestDoTellsTheLoss(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	c := client(t, d)
	errWork := errors.New("the work failed")
	for _, answer := range []error{nil, errWork} {
		err := c.Do(soon(t), advisory.Name("a"), func(ctx context.Context) error {
			d.KillBackends(t, `application_name = 'pglock/advisory'`)
			happens(t, "the end of the function's context", ctx.Done())
			wantErr(t, "the cause", context.Cause(ctx), advisory.ErrLost)
			return answer
		})
		wantErr(t, "Do", err, advisory.ErrLost)
		if answer != nil {
			wantErr(t, "Do", err, answer)
		}
	}
}
