package history_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/fencedlock/fencedlock/internal/history"
)

func TestReadRefusesWhatItDoesNotKnow(t *testing.T) {
	good := `{"write":{"lock":"x","token":1,"resource":"r"}}` + "\n"
	for _, c := range []struct{ name, bad, want string }{
		{"a misspelt field", `{"write":{"lock":"x","token":1,"resource":"r","acepted":true}}`, "acepted"},
		{"an unknown event", `{"wrote":{}}`, "wrote"},
		{"an empty line", `{}`, "0 events"},
		{"two events in a line", `{"write":{"lock":"x","token":1},"process":{"name":"p"}}`, "2 events"},
		{"a line that was cut off", `{"write":{"lock":"x"`, "unexpected EOF"},
		{"no JSON", `write`, "invalid character"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := history.Read(strings.NewReader(good + c.bad))
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "event 2") {
				t.Errorf("Read = %v, want an error that names event 2 and has %q", err, c.want)
			}
		})
	}
}

func TestWriteReportsAFullDisk(t *testing.T) {
	full := errors.New("no space left")
	if err := generate(baseSeed, 300).Write(failingWriter{full}); !errors.Is(err, full) {
		t.Errorf("Write = %v, want %v", err, full)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// Whatever Read takes is written and read again as the same, and checked without a panic.
func FuzzRead(f *testing.F) {
	var buf bytes.Buffer
	if err := generate(baseSeed, 60).Write(&buf); err != nil {
		f.Fatal(err)
	}
	f.Add(buf.Bytes())
	f.Add([]byte(`{"trust":{"lock":"x","token":1,"process":"p","from":5,"until":2}}`))
	f.Fuzz(func(t *testing.T, file []byte) {
		h, err := history.Read(bytes.NewReader(file))
		if err != nil {
			return
		}
		opts := checkOptions()
		opts.OneMachine = true
		history.Check(h, opts)
		first := encode(t, h)
		again, err := history.Read(bytes.NewReader(first))
		if err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		if !bytes.Equal(encode(t, again), first) {
			t.Error("the second copy differs from the first")
		}
	})
}
