package pglock_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/migrations"
	"github.com/fencedlock/fencedlock/pglock"
)

// otherServer is what a restart, a failover or a restore looks like to the database.
const otherServer = `UPDATE pglock.guard SET started = 'epoch'`

func TestTheOwnerEndsAHoldAndAHoldSaysWhyItIs(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := client(t, d)
	d.Exec(t, otherServer)
	_, err := c.TryAcquire(soon(t), "a")
	var back *pglock.HeldBackError
	if !errors.As(err, &back) || back.Reason != "the server was restarted" {
		t.Fatalf("TryAcquire = %v, want a *HeldBackError with its reason", err)
	}
	for _, part := range []string{`"a"`, "the server was restarted", "EndHold", `SELECT "pglock".end_hold()`} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	waiting := acquiring(soon(t), client(t, d), "b")
	wantErr(t, "EndHold", c.EndHold(soon(t)), nil)
	take(t, c, "a")
	release(t, granted(t, waiting)) // it notices

	d.Exec(t, otherServer)
	wantErr(t, "EndHold before anybody has noticed", c.EndHold(soon(t)), nil)
	take(t, client(t, d), "c")
}

func TestAHoldIsLoggedOnce(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	var log strings.Builder
	quiet := slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}) // it has a lock of its own
	c := open(t, d.URL, pglock.Config{Logger: slog.New(quiet)})
	take(t, c, "a")
	for range 2 {
		d.Exec(t, otherServer)
		for range 3 {
			_, err := c.TryAcquire(soon(t), "b")
			wantErr(t, "TryAcquire", err, pglock.ErrHeldBack)
		}
		d.Exec(t, `UPDATE pglock.guard SET no_grants_before = no_grants_before + interval '5 s'`) // another bump, later
	}
	wantErr(t, "Close", c.Close(soon(t)), nil)
	lines := strings.Count(log.String(), "level=WARN")
	if lines != 2 || !strings.Contains(log.String(), "the server was restarted") {
		t.Errorf("%d warnings for two holds:\n%s", lines, &log)
	}
}

func TestARaisedCapAllowsLongerTTLs(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := client(t, d)
	_, err := c.TryAcquire(soon(t), "a", pglock.TTL(time.Minute))
	wantErr(t, "a TTL above the cap", err, pglock.ErrInvalidOption)
	if !strings.Contains(err.Error(), `SELECT "pglock".raise_cap(60000000)`) {
		t.Errorf("%v: want the way to raise it", err)
	}
	wantErr(t, "RaiseCap", c.RaiseCap(soon(t), time.Minute), nil)
	wantErr(t, "RaiseCap to what it is", c.RaiseCap(soon(t), time.Minute), nil)
	release(t, take(t, c, "a", pglock.TTL(time.Minute)))
	err = c.RaiseCap(soon(t), 59*time.Second)
	wantErr(t, "a lower cap", err, pglock.ErrInvalidOption)
	if !strings.Contains(err.Error(), "the cap is 60 s") {
		t.Errorf("%v: want the cap", err)
	}
	for _, bad := range []time.Duration{-1, 0, pglock.MinTTL - 1, time.Minute + 1, 24*time.Hour + 1, 1<<63 - 1} {
		wantErr(t, "RaiseCap to "+bad.String(), nowhere(t).RaiseCap(soon(t), bad), pglock.ErrInvalidOption)
	}
	if got := pgtest.Query[int64](t, d, `SELECT cap_us FROM pglock.guard`); got != time.Minute.Microseconds() {
		t.Errorf("the cap is %d us", got)
	}
}

// A standby that is promoted without the new cap would hold grants back for too short a time.
func TestARaisedCapWaitsForTheStandbys(t *testing.T) {
	t.Parallel()
	primary, standby := pgtest.Standby(t)
	c := client(t, primary)
	if err := standby.Server.Freeze(); err != nil {
		t.Fatal(err)
	}
	why := errors.New("the operator's patience is over")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 500*time.Millisecond, why)
	defer cancel()
	err := c.RaiseCap(ctx, time.Minute)
	wantErr(t, "RaiseCap beside a standby that is behind", err, why)
	if err == nil || !strings.Contains(err.Error(), "standby") || !strings.Contains(err.Error(), "the cap is raised") {
		t.Errorf("%v: want what was done, and the standby's name", err)
	}
	if err := standby.Server.Thaw(); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "RaiseCap", c.RaiseCap(soon(t), time.Minute), nil)
	if got := pgtest.Query[int64](t, standby, `SELECT cap_us FROM pglock.guard`); got != time.Minute.Microseconds() {
		t.Errorf("the cap of the standby is %d us", got)
	}
	wantErr(t, "RaiseCap on a standby", client(t, standby).RaiseCap(soon(t), 2*time.Minute), pglock.ErrReadOnly)

	// An owner that is not allowed to see the standbys is not told that all is well.
	role := primary.Role(t)
	primary.Exec(t, `CREATE SCHEMA its AUTHORIZATION `+role)
	pool, err := pgxpool.New(t.Context(), primary.URLAs(role))
	wantErr(t, "pool", err, nil)
	t.Cleanup(pool.Close)
	wantErr(t, "Up", migrations.Up(soon(t), pool, migrations.Schema("its")), nil)
	owner := open(t, primary.URLAs(role), pglock.Config{Schema: "its"})
	wantErr(t, "RaiseCap without pg_monitor", owner.RaiseCap(soon(t), time.Minute), pglock.ErrNotAllowed)
	primary.Exec(t, `GRANT pg_monitor TO `+role)
	wantErr(t, "RaiseCap", owner.RaiseCap(soon(t), time.Minute), nil)
}

func TestADeclaredSingleNodeWaitsFromItsStart(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := client(t, d)
	fromStart := func() bool {
		d.Exec(t, otherServer+`, no_grants_before = 'epoch', cap_us = 86400000000`)
		_, err := c.TryAcquire(soon(t), "a")
		wantErr(t, "TryAcquire", err, pglock.ErrHeldBack)
		return pgtest.Query[bool](t, d, `SELECT no_grants_before = pg_postmaster_start_time() + interval '1 day' FROM pglock.guard`)
	}
	for _, single := range []bool{true, false} {
		wantErr(t, "DeclareSingleNode", c.DeclareSingleNode(soon(t), single), nil)
		if got := fromStart(); got != single {
			t.Errorf("declared %t: the hold counts from the start: %t", single, got)
		}
	}
}

func TestOnlyTheOwnerOperates(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	role := d.Role(t)
	d.Exec(t, `SELECT pglock.grant_locker('`+role+`'), pglock.grant_auditor('`+role+`')`)
	locker := open(t, d.URLAs(role), pglock.Config{})
	closed := client(t, d)
	wantErr(t, "Close", closed.Close(soon(t)), nil)
	before := pgtest.Query[string](t, d, `SELECT g::text FROM pglock.guard g`)
	for c, want := range map[*pglock.Client]error{locker: pglock.ErrNotAllowed, closed: pglock.ErrClosed} {
		wantErr(t, "EndHold", c.EndHold(soon(t)), want)
		wantErr(t, "RaiseCap", c.RaiseCap(soon(t), time.Minute), want)
		wantErr(t, "DeclareSingleNode", c.DeclareSingleNode(soon(t), true), want)
	}
	if after := pgtest.Query[string](t, d, `SELECT g::text FROM pglock.guard g`); after != before {
		t.Errorf("the guard is %s, was %s", after, before)
	}
}
