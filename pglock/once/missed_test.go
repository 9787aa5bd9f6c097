package once_test

import (
	"context"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/fencedlock/fencedlock/pglock/once"
)

// every is the schedule of whole multiples of d.
func every(d time.Duration) func(time.Time) time.Time {
	return func(after time.Time) time.Time { return after.Truncate(d).Add(d) }
}

var hourly = every(time.Hour)

// Which occurrences were missed is reckoned from the latest on record, with a bound on what is answered and on how long that takes.
func TestMissedOccurrences(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	runs := runner(t, d.URL, "a", d.Pool(t))
	hour := tick.Truncate(time.Hour)
	missed := func(next func(time.Time) time.Time, now time.Time, choice once.CatchUp) []time.Time {
		t.Helper()
		got, err := runs.Missed(soon(t), "report", next, now, choice)
		wantErr(t, "Missed", err, nil)
		return got
	}
	same := func(what string, got []time.Time, want ...time.Time) {
		t.Helper()
		if len(got) != len(want) {
			t.Fatalf("%s: %v, want %v", what, got, want)
		}
		for i := range got {
			if got[i] != want[i] { // in UTC, too
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
	}
	same("never run", missed(hourly, hour.Add(5*time.Hour), once.All))
	wantErr(t, "Run", runs.Run(soon(t), "report", hour.Add(-time.Hour), does(nil)), nil)
	wantErr(t, "Run", runs.Run(soon(t), "report", hour, does(errBroken)), errBroken) // run is run, whatever came of it
	zone := time.FixedZone("", 5400)
	now := hour.Add(3*time.Hour + time.Minute).In(zone)
	same("none", missed(hourly, now, once.None))
	same("the latest", missed(hourly, now, once.Latest), hour.Add(3*time.Hour))
	same("all", missed(hourly, now, once.All), hour.Add(time.Hour), hour.Add(2*time.Hour), hour.Add(3*time.Hour))
	same("all, at the very instant", missed(hourly, hour.Add(time.Hour), once.All), hour.Add(time.Hour))
	same("nothing yet", missed(hourly, hour.Add(time.Hour-1), once.All))
	same("nothing yet, latest", missed(hourly, hour.Add(time.Hour-1), once.Latest))
	same("a clock that is behind", missed(hourly, hour.Add(-time.Hour), once.Latest))
	same("an end", missed(func(time.Time) time.Time { return time.Time{} }, now, once.All))
	wantErr(t, "Run", runs.Run(soon(t), "report", hour.Add(3*time.Hour), does(nil)), nil)
	same("after the latest", missed(hourly, now, once.All))

	// A year without the job that is due each second.
	asked := 0
	secondly := func(after time.Time) time.Time {
		if asked++; after.Location() != zone {
			t.Fatalf("the schedule is asked in the zone %v", after.Location())
		}
		return every(time.Second)(after)
	}
	year := hour.AddDate(1, 0, 0).Add(999 * time.Millisecond).In(zone)
	all := missed(secondly, year, once.All)
	if len(all) != once.MaxMissed || all[0] != hour.Add(3*time.Hour+time.Second) || all[once.MaxMissed-1] != hour.Add(3*time.Hour+once.MaxMissed*time.Second) {
		t.Errorf("of a year: %d, from %v to %v", len(all), all[0], all[len(all)-1])
	}
	asked = 0
	same("the latest of a year", missed(secondly, year, once.Latest), hour.AddDate(1, 0, 0))
	if asked > 150 {
		t.Errorf("the schedule was asked %d times", asked)
	}
	// Occurrences in bursts: on the first seconds of each day.
	burst := func(after time.Time) time.Time {
		if next := every(time.Second)(after); next.Sub(next.Truncate(24*time.Hour)) < 5*time.Second {
			return next
		}
		return every(24 * time.Hour)(after)
	}
	same("the latest of a burst", missed(burst, hour.AddDate(0, 2, 0), once.Latest), hour.AddDate(0, 2, 0).Truncate(24*time.Hour).Add(4*time.Second))

	for what, next := range map[string]func(time.Time) time.Time{
		"stands still":  func(after time.Time) time.Time { return after },
		"goes back":     func(after time.Time) time.Time { return after.Add(-time.Hour) },
		"is too narrow": func(after time.Time) time.Time { return after.Add(time.Nanosecond) },
	} {
		for _, choice := range []once.CatchUp{once.Latest, once.All} {
			_, err := runs.Missed(soon(t), "report", next, year, choice)
			wantErr(t, "a schedule that "+what, err, once.ErrInvalid)
		}
	}
}

// Records are forgotten by their age, with their locks, but none that runs, or that ran just now. Only the owner may.
func TestHistoryAndPrune(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	pool := d.Pool(t)
	runs := runner(t, d.URL, "a", pool)
	_, err := runs.Last(soon(t), "report")
	wantErr(t, "Last of a job that never ran", err, once.ErrNoRecord)
	for i := range 5 {
		wantErr(t, "Run", runs.Run(soon(t), "report", tick.AddDate(0, 0, i), does(nil)), nil)
	}
	wantErr(t, "Run", runs.Run(soon(t), "other", tick, does(errBroken)), errBroken)
	future := time.Now().AddDate(1, 0, 0)
	wantErr(t, "Run", runs.Run(soon(t), "other", future, does(nil)), nil)
	records, err := runs.History(soon(t), "report", 3)
	if err != nil || len(records) != 3 || records[0].Due != tick.AddDate(0, 0, 4) || records[2].Due != tick.AddDate(0, 0, 2) {
		t.Errorf("History = %v, %v", records, err)
	}
	prune := func(age time.Duration, want int) {
		t.Helper()
		n, err := runs.Prune(soon(t), age)
		if err != nil || n != want {
			t.Errorf("Prune(%v) = %d, %v, want %d", age, n, err, want)
		}
	}
	prune(0, 0) // all is younger than the cap
	err = runs.Run(soon(t), "report", tick.AddDate(0, 0, 5), func(_ context.Context, _ *pglock.Lease) error {
		d.Exec(t, `UPDATE pglock.occurrences SET started_at = started_at - interval '1 h', ended_at = ended_at - interval '1 h';
			UPDATE pglock.leases SET granted_at = granted_at - interval '1 h'`)
		prune(2*time.Hour, 0)
		prune(time.Minute, 6) // not this one, nor that of the future
		return nil
	})
	wantErr(t, "Run that is not forgotten", err, nil)
	if got := pgtest.Query[int](t, d, `SELECT count(*) FROM pglock.leases`); got != 2 {
		t.Errorf("%d locks are left, want 2", got)
	}
	d.Exec(t, `CREATE FUNCTION another() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO pglock.occurrences SELECT OLD.*; RETURN NULL; END $$;
		CREATE TRIGGER another AFTER DELETE ON pglock.occurrences FOR EACH ROW EXECUTE FUNCTION another();
		INSERT INTO pglock.occurrences VALUES ('old', 'epoch', 'old', 1, 1, '', 'epoch', 'epoch')`)
	prune(time.Hour, 1) // it ends where there is always one more
	d.Exec(t, `DROP TRIGGER another ON pglock.occurrences; DELETE FROM pglock.occurrences WHERE job = 'old'`)
	token := records[2].Token
	wantErr(t, "Run of what is forgotten", runs.Run(soon(t), "report", tick, does(nil)), nil)
	if rec, err := runs.History(soon(t), "report", 9); err != nil || len(rec) != 2 || rec[1].Attempt != 1 || rec[1].Token <= token {
		t.Errorf("History = %+v, %v, want a new record with a token above %d", rec, err, token)
	}
	role := d.Role(t)
	d.Exec(t, `SELECT pglock.grant_locker('`+role+`')`)
	conn := d.Conn(t)
	if _, err := conn.Exec(soon(t), `SET ROLE `+role); err != nil {
		t.Fatal(err)
	}
	service := runner(t, d.URL, "service", conn)
	_, err = service.Prune(soon(t), time.Hour)
	wantErr(t, "Prune of a service", err, pglock.ErrNotAllowed)
	_, err = service.Last(soon(t), "report")
	wantErr(t, "Last of a service", err, nil)
}
