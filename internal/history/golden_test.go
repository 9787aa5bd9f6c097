package history_test

import (
	"bytes"
	"compress/gzip"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/fencedlock/fencedlock/internal/history"
)

var update = flag.Bool("update", false, "rewrite testdata/history from what the code does now")

const goldenEvents = 1500

func golden(name string) string { return filepath.Join("..", "..", "testdata", "history", name) }

// The file pins the format: histories that were recorded by one version can be read by the next.
func TestGoldenHistory(t *testing.T) {
	name := golden("clean.jsonl.gz")
	if *update {
		writeGzip(t, name, encode(t, generate(baseSeed, goldenEvents)))
	}
	want := readGzip(t, name)

	h, err := history.Read(bytes.NewReader(want))
	if err != nil {
		t.Fatal(err)
	}

	if !bytes.Equal(encode(t, h), want) {
		t.Error("a history that is read and written again differs: the file format has changed")
	}
	if h.Len() != goldenEvents {
		t.Errorf("%d events, want %d", h.Len(), goldenEvents)
	}
	if err := history.Check(h, checkOptions()).Err(); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(encode(t, generate(baseSeed, goldenEvents)), want) {
		t.Error("the generator no longer makes this history from its seed (go test -update)")
	}
}

// The file shows what each kind of violation looks like to its reader.
func TestGoldenViolations(t *testing.T) {
	h, err := history.Read(bytes.NewReader(readGzip(t, golden("clean.jsonl.gz"))))
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	for _, p := range plants {
		faulty, _ := planted(t, h, p, rand.New(rand.NewPCG(baseSeed, 5)))
		violations := history.Check(faulty, checkOptions()).Violations
		if len(violations) == 0 {
			t.Fatalf("%s: nothing found", p.how)
		}
		fmt.Fprintf(&got, "%s\n  %v\n\n", p.how, violations[0])
	}
	name := golden("violations.txt")
	if *update {
		if err := os.WriteFile(name, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), bytes.ReplaceAll(want, []byte("\r\n"), []byte("\n"))) {
		t.Errorf("the messages have changed (go test -update if they are better now):\n%s", got.Bytes())
	}
}

func writeGzip(t *testing.T, name string, content []byte) {
	t.Helper()
	var buf bytes.Buffer
	z, err := gzip.NewWriterLevel(&buf, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, buf.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func readGzip(t *testing.T, name string) []byte {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return content
}
