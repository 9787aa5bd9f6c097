package pglock_test

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

func TestHoldAtLeastKeepsOthersAwayAfterTheRelease(t *testing.T) {
	t.Parallel()
	for ending, end := range map[string]func(*testing.T, *pgtest.Database, *pglock.Lease){
		"released": func(t *testing.T, _ *pgtest.Database, l *pglock.Lease) { release(t, l) },
		"expired": func(t *testing.T, d *pgtest.Database, _ *pglock.Lease) {
			d.Exec(t, `UPDATE pglock.leases SET expires_at = clock_timestamp()`)
		},
	} {
		t.Run(ending, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			c, rival := client(t, d), client(t, d)
			l := take(t, c, "a", pglock.HoldAtLeast(time.Hour), pglock.NoRenewal()) // longer than the cap on TTLs
			end(t, d, l)
			for _, who := range []*pglock.Client{c, rival} {
				if held := refused(t, who, "a"); held.Remaining < 59*time.Minute || held.Remaining > time.Hour {
					t.Errorf("told that %v are left of an hour", held.Remaining)
				}
			}
			s, err := c.Inspect(t.Context(), "a")
			if err != nil || s.Held || s.FreeIn < 59*time.Minute || s.FreeIn > time.Hour || s.Remaining != 0 {
				t.Errorf("Inspect = %+v, %v", s, err)
			}
			d.Age(t, "a", time.Hour)
			take(t, rival, "a")
		})
	}
}

func TestNoRenewalLeavesRenewingToTheCaller(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := open(t, d.URL, pglock.Config{RenewEvery: 100 * time.Millisecond})
	l, other := take(t, c, "a", pglock.NoRenewal()), take(t, c, "b")
	until := pgtest.Query[time.Time](t, d, `SELECT expires_at FROM pglock.leases WHERE name = 'a'`)
	renewedAgain(t, d, "b")
	renewedAgain(t, d, "b")
	if got := pgtest.Query[time.Time](t, d, `SELECT expires_at FROM pglock.leases WHERE name = 'a'`); !got.Equal(until) {
		t.Error("it was renewed")
	}
	deadline := l.Deadline()
	wantErr(t, "Renew", l.Renew(soon(t)), nil)
	if !l.Deadline().After(deadline) {
		t.Errorf("the deadline was %v and is %v", deadline, l.Deadline())
	}
	d.Age(t, "a", time.Minute)
	wantErr(t, "Renew of an expired lease", l.Renew(soon(t)), pglock.ErrLost)
	wantLoss(t, l, pglock.Expired)
	stillHeld(t, d, other)
}

func TestARenewalEndsWithItsContext(t *testing.T) {
	t.Parallel()
	_, p, c := connected(t)
	l := take(t, c, lockName)
	p.Stall(pgtest.Both)
	renewing := async(func() error {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, errShutdown)
		defer cancel()
		return l.Renew(ctx)
	})
	wantErr(t, "Renew", happens(t, "Renew comes back", renewing), errShutdown)
	if !l.Valid() {
		t.Errorf("lost: %v", l.Err())
	}
	p.Resume()
}

func TestMetadataIsStoredBesideTheLease(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := client(t, d)
	for what, v := range map[string]any{
		"null": nil, "text": "it's \"quoted\" \\ \u2028 🔒 é", "number": 12.5, "list": []int{1, 2}, "empty": map[string]any{},
		"raw": json.RawMessage(`{"a": [1, "\ud83d\ude00", "\\u0000"]}`), "large": strings.Repeat("x", 16<<10-2), "big number": json.Number("1e1000"),
	} {
		l, err := c.TryAcquire(t.Context(), what, pglock.Metadata(v))
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		s, err := c.Inspect(t.Context(), what)
		if err != nil {
			t.Error(err)
		}
		want, _ := json.Marshal(v)
		if !pgtest.Query[bool](t, d, `SELECT $1::text::jsonb = $2::text::jsonb`, string(want), string(s.Metadata)) {
			t.Errorf("%s: %s was stored as %s", what, want, s.Metadata)
		}
		release(t, l)
		release(t, take(t, c, what)) // the next grant has none
		if s, err := c.Inspect(t.Context(), what); err != nil || s.Metadata != nil {
			t.Errorf("%s: the next grant has metadata %s, %v", what, s.Metadata, err)
		}
	}
}

func TestMetadataThatCannotBeStoredIsRefusedBeforeAnySQL(t *testing.T) {
	c := nowhere(t)
	for what, v := range map[string]any{
		"channel": make(chan int), "NaN": math.NaN(), "NUL": "a\x00b", "escaped NUL": json.RawMessage(`"\u0000"`), "NUL in a key": map[string]int{"\x00": 1},
		"high surrogate": json.RawMessage(`"\ud800"`), "low surrogate": json.RawMessage(`"\udc00"`), "two high": json.RawMessage(`"\ud800\ud800"`),
		"wrong order": json.RawMessage(`"\udc00\ud800"`), "high, text": json.RawMessage(`"\ud800x"`), "high, escape": json.RawMessage(`"\ud800\n\udc00"`),
		"too large": strings.Repeat("x", 16<<10-1), "no JSON": json.RawMessage(`{`),
	} {
		_, err := c.TryAcquire(t.Context(), "a", pglock.Metadata(v))
		wantErr(t, "metadata: "+what, err, pglock.ErrInvalidOption)
	}
}

func TestMetadataThatOnlyTheDatabaseRefusesIsAnInvalidOption(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	for what, v := range map[string]any{"huge number": json.Number("1e200000")} {
		_, err := client(t, d).TryAcquire(soon(t), "a", pglock.Metadata(v))
		wantErr(t, "metadata: "+what, err, pglock.ErrInvalidOption)
	}
	if pgtest.Query[bool](t, d, isHeld, "a") {
		t.Error("it was granted all the same")
	}
}

func TestABadOptionIsRefusedBeforeAnySQL(t *testing.T) {
	c := nowhere(t)
	for what, o := range map[string]pglock.Option{
		"zero": {}, "HoldAtLeast(0)": pglock.HoldAtLeast(0), "HoldAtLeast(-1)": pglock.HoldAtLeast(-1),
		"HoldAtLeast(min)": pglock.HoldAtLeast(math.MinInt64), "HoldAtLeast(max)": pglock.HoldAtLeast(math.MaxInt64),
		"a year and more": pglock.HoldAtLeast(366*24*time.Hour + 1),
	} {
		_, err := c.TryAcquire(t.Context(), "a", o)
		wantErr(t, what, err, pglock.ErrInvalidOption)
	}
	_, err := c.TryAcquire(t.Context(), "a", pglock.Permits(3), pglock.Shared())
	if wantErr(t, "two kinds", err, pglock.ErrInvalidOption); !strings.Contains(err.Error(), "Permits(3) and Shared() exclude each other") {
		t.Errorf("two kinds: %v", err)
	}
	for what, cfg := range map[string]pglock.Config{
		"long schema": {Schema: strings.Repeat("s", 64)}, "NUL in the schema": {Schema: "a\x00"}, "schema is no UTF-8": {Schema: "\xff"},
	} {
		_, err := pglock.Open("host=/nonexistent", cfg)
		wantErr(t, what, err, pglock.ErrInvalidOption)
	}
	_, err = pglock.New(nil, pglock.Config{})
	wantErr(t, "New without a pool", err, pglock.ErrInvalidOption)
	_, err = pglock.Open("postgres://%zz", pglock.Config{})
	wantErr(t, "Open of a bad URL", err, pglock.ErrInvalidOption)
}
