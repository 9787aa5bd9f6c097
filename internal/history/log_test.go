package history_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/history"
)

func TestLogSQLNamesTheSchemaEverywhere(t *testing.T) {
	const schema = `"odd ""{schema}"" name"`
	for _, sql := range []string{history.InstallLog(schema), history.SelectLog(schema), history.SelectHandOvers(schema)} {
		if n := strings.Count(sql, schema+"."); n == 0 || n != strings.Count(sql, "{schema}") {
			t.Errorf("%d qualified names, %d places for one in\n%s", n, strings.Count(sql, "{schema}"), sql)
		}
	}
}

// fakeRows scans rows of the columns of SelectLog, as a driver would.
type fakeRows struct {
	rows [][]any
	err  error // at the end
}

func (r *fakeRows) Next() bool { return len(r.rows) > 0 }
func (r *fakeRows) Err() error { return r.err }

func (r *fakeRows) Scan(dest ...any) error {
	row := r.rows[0]
	r.rows = r.rows[1:]
	if err, ok := row[0].(error); ok {
		return err
	}
	for i, d := range dest {
		reflect.ValueOf(d).Elem().Set(reflect.ValueOf(row[i]))
	}
	return nil
}

func logRow(serial int64) []any {
	return []any{serial, true, "x", 2, int64(7), "a7", "host", int64(10), int64(20), int64(30), int64(35), 3, int64(40)}
}

func TestReadHandOvers(t *testing.T) {
	all, err := history.ReadHandOvers(&fakeRows{rows: [][]any{{"x", 0, "a1", "a2"}, {"x", 2, "a3", "a4"}}})
	if err != nil {
		t.Fatal(err)
	}
	if want := (history.HandOver{Lock: "x", Slot: 2, From: "a3", To: "a4"}); len(all) != 2 || all[1] != want {
		t.Errorf("ReadHandOvers = %+v, want the second to be %+v", all, want)
	}
	broken := errors.New("cut")
	for _, rows := range []*fakeRows{{rows: [][]any{{broken}}}, {err: broken}} {
		if _, err := history.ReadHandOvers(rows); !errors.Is(err, broken) {
			t.Errorf("ReadHandOvers of what breaks: %v", err)
		}
	}
}

func TestReadLog(t *testing.T) {
	changes, err := history.ReadLog(&fakeRows{rows: [][]any{logRow(1), logRow(2)}})
	if err != nil {
		t.Fatal(err)
	}
	want := history.Change{
		Serial: 2, Removed: true, Lock: "x", Slot: 2, Token: 7, Acquisition: "a7", Owner: "host",
		GrantedAt: 10, ExpiresAt: 20, NotBefore: 30, Delay: 35 * time.Microsecond, Permits: 3, RecordedAt: 40,
	}
	if len(changes) != 2 || changes[1] != want {
		t.Errorf("ReadLog = %+v, want the second to be %+v", changes, want)
	}
}

func TestReadLogPassesErrorsOn(t *testing.T) {
	broken := errors.New("connection reset")
	for name, rows := range map[string]*fakeRows{
		"in a row":   {rows: [][]any{logRow(41), {broken}}},
		"at the end": {rows: [][]any{logRow(41)}, err: broken},
	} {
		if _, err := history.ReadLog(rows); !errors.Is(err, broken) || !strings.Contains(err.Error(), "41") {
			t.Errorf("%s: ReadLog = %v, want %v after serial 41", name, err, broken)
		}
	}
}
