package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/history"
	"github.com/fencedlock/fencedlock/pglock"
)

// stressTables hold what the locks protect, and every write that was committed. A write draws its serial in its own
// transaction, under the fence of the resource or the lock on the row, so that serials are in the order of commits. They are
// read from here, since a writer whose connection was cut does not know whether its write counts.
const stressTables = `
CREATE TABLE stress_writes (serial bigint GENERATED ALWAYS AS IDENTITY, resource text, lock text, token bigint);
CREATE TABLE stress_rows (name text PRIMARY KEY, writer text, fencing_token bigint NOT NULL DEFAULT 0);
CREATE FUNCTION record_write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO stress_writes (resource, lock, token) VALUES ('row/' || NEW.name, NEW.name, NEW.fencing_token);
  RETURN NULL;
END $$;
CREATE TRIGGER record_write AFTER INSERT OR UPDATE ON stress_rows FOR EACH ROW EXECUTE FUNCTION record_write()`

var stressRows = fence.Table{Name: "stress_rows", Key: []string{"name"}}

// gather puts the history together: the database's log, the writes that were accepted, and the clients' records.
func (s *stress) gather(t *testing.T) *history.History {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	h := &history.History{}
	rows, err := s.admin.Query(ctx, history.SelectLog("pglock"))
	if err != nil {
		t.Fatal(err)
	}
	h.Changes, err = history.ReadLog(rows)
	rows.Close()
	if err != nil {
		t.Fatal(err)
	}
	rows, err = s.admin.Query(ctx, history.SelectHandOvers("pglock"))
	if err != nil {
		t.Fatal(err)
	}
	h.HandOvers, err = history.ReadHandOvers(rows)
	rows.Close()
	if err != nil {
		t.Fatal(err)
	}
	rows, err = s.admin.Query(ctx, `SELECT resource, lock, token, serial FROM stress_writes`)
	if err != nil {
		t.Fatal(err)
	}
	h.Writes, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (history.Write, error) {
		w := history.Write{Accepted: true}
		err := row.Scan(&w.Resource, &w.Lock, &w.Token, &w.Serial)
		return w, err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range s.hosts {
		h.Add(host.record.History())
	}
	return h
}

// enough answers nil once so much has happened that the history shows something.
func (s *stress) enough(t *testing.T) error {
	t.Helper()
	err := history.Check(s.gather(t), history.Options{}).Stats.AtLeast(s.least)
	if s.cuts < stressLeastCuts {
		err = errors.Join(err, fmt.Errorf("%d cuts, want %d", s.cuts, stressLeastCuts))
	}
	if s.stalls == 0 || s.kills == 0 {
		err = errors.Join(err, fmt.Errorf("%d stalls and %d backends killed, want some of each", s.stalls, s.kills))
	}
	if n := s.batches(t); n < s.leastBatches {
		err = errors.Join(err, fmt.Errorf("%d batches, want %d", n, s.leastBatches))
	}
	return err
}

// batches counts the transactions in which several names were granted.
func (s *stress) batches(t *testing.T) (n int) {
	t.Helper()
	err := s.admin.QueryRow(context.WithoutCancel(t.Context()), `SELECT count(*) FROM (SELECT FROM
		(SELECT DISTINCT ON (name, slot, token) xmin::text, name, expires_at, recorded_at FROM pglock.lease_history ORDER BY name, slot, token, serial) first
		WHERE expires_at > recorded_at GROUP BY xmin HAVING count(DISTINCT name) > 1) batch`).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// check judges the whole run. A run that broke a guarantee leaves its history in a file.
func (s *stress) check(t *testing.T) {
	t.Helper()
	h := s.gather(t)
	report := history.Check(h, history.Options{
		RenewalTolerance: 50 * time.Millisecond,
		OneMachine:       true,
		LossNeedsProof:   func(cause string) bool { return cause != string(pglock.Expired) && cause != string(pglock.HeldTooLong) },
		ClockTolerance:   5 * time.Millisecond,
	})
	all := len(report.Violations)
	report.Violations = slices.DeleteFunc(report.Violations, func(v history.Violation) bool { return s.pauses.explain(h, v) || overtaken(h, v) })
	t.Logf("%+v; %d batches, %d cuts, %d stalls, %d replies to lose, %d backends killed, %d rude locks, %d names deleted or pruned; %d violations explained",
		report.Stats, s.batches(t), s.cuts, s.stalls, s.lostReplies, s.kills, s.rudeLocks, s.deletions, all-len(report.Violations))
	if err := report.Err(); err != nil {
		t.Errorf("PGLOCK_SEED=%d: %v\nthe history is in %s", s.seed, err, keep(t, h, s.seed))
	}
}

// overtaken says whether an acquisition was granted twice only because the row knew its id no more, and one of the two was told to nobody. Its
// repetition was held up on its way: by then the first grant was over, and another's had come; nothing may be sent so late that this
// could happen later. Or the row was deleted by hand, before the waiter to whom a release had granted it came for it.
func overtaken(h *history.History, v history.Violation) bool {
	if v.Kind != history.AcquisitionGrantedTwice && v.Kind != history.SplitGroup {
		return false
	}
	second, first := v.Events[0].(history.Change), v.Events[1].(history.Change)
	told := func(c history.Change) bool {
		return slices.ContainsFunc(h.Trusts, func(t history.Trust) bool { return t.Token == c.Token })
	}
	removed := slices.ContainsFunc(h.Changes, func(c history.Change) bool {
		return c.Removed && c.Lock == first.Lock && c.Token == first.Token && c.Serial < second.Serial
	})
	return !told(second) && second.GrantedAt < first.ExpiresAt.Add(2*stressStall) || !told(first) && removed
}

func keep(t *testing.T, h *history.History, seed uint64) string {
	t.Helper()
	f, err := os.CreateTemp("", fmt.Sprintf("pglock-stress-%d-*.jsonl", seed))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(h.Write(f), f.Close()); err != nil {
		t.Error(err)
	}
	return f.Name()
}
