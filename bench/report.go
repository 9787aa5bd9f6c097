package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// print shows what a question found out, with its plot where there is one.
func (a *answer) print(w io.Writer, q question, plot string) {
	fmt.Fprintf(w, "\n### %s: %s\n\n", q.id, q.title)
	a.markdown(w, a.units)
	for _, n := range a.notes {
		fmt.Fprintf(w, "\n%s\n", n)
	}
	if plot != "" {
		fmt.Fprintf(w, "\n![%s](%s)\n", q.title, plot)
	}
	fmt.Fprintln(w)
}

// save writes the raw values and the plot.
func (b *bench) save(dir string, q question, a *answer) error {
	var raw, plot bytes.Buffer
	for _, line := range b.about() {
		fmt.Fprintln(&raw, line)
	}
	a.benchstat(&raw, camel(q.id))
	a.plot(&plot, q.title, a.units[0])
	for name, text := range map[string][]byte{q.id + ".txt": raw.Bytes(), q.id + ".svg": plot.Bytes()} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// introduce says what was run on what, and how each system was used.
func (b *bench) introduce(w io.Writer) {
	fmt.Fprintf(w, "\n# A run (%s)\n\n```\n%s\n```\n\n", b.mode, strings.Join(b.about(), "\n"))
	fmt.Fprint(w, "| system | on | how it is used |\n|---|---|---|\n")
	for _, s := range systems() {
		fmt.Fprintf(w, "| %s | %s | %s |\n", s.Name, s.On, s.Note)
	}
	for _, line := range append(b.missing, notToBeHad) {
		fmt.Fprintf(w, "\n%s\n", line)
	}
	fmt.Fprintln(w)
}

const notToBeHad = "faustbrian/go-lease, cirello.io/pglock and allisson/go-pglock cannot be had as modules where this was written: the " +
	"first is left out, and of the others the statements are replayed."

// about says what was run on what, in the form in which benchstat takes it.
func (b *bench) about() []string {
	lines := []string{
		"goos: " + runtime.GOOS, "goarch: " + runtime.GOARCH, "pkg: github.com/fencedlock/fencedlock/bench",
		"cpu: " + processor(), "go: " + runtime.Version(), "date: " + b.began.UTC().Format(time.DateTime), fmt.Sprint("seed: ", b.seed),
	}
	for _, s := range servers {
		if on := b.servers[s.name]; on != nil {
			lines = append(lines, fmt.Sprintf("%s: %s (%s)", strings.ToLower(strings.ReplaceAll(s.name, " ", "-")), on.version, on.settings))
		}
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if slices.Contains(clients, m.Path) {
				lines = append(lines, m.Path+": "+m.Version)
			}
		}
	}
	return lines
}

// clients are the modules whose versions matter.
var clients = []string{
	"github.com/jackc/pgx/v5", "github.com/pressly/goose/v3", "github.com/bsm/redislock", "github.com/go-redsync/redsync/v4",
	"github.com/redis/go-redis/v9", "go.etcd.io/etcd/client/v3", "github.com/go-zookeeper/zk",
}

func processor() string {
	name := "unknown"
	info, _ := os.ReadFile("/proc/cpuinfo") // not there: unknown
	for line := range strings.Lines(string(info)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "model name" {
			name = strings.TrimSpace(value)
		}
	}
	return fmt.Sprintf("%s, %d cores", name, runtime.NumCPU())
}

// camel makes the name of a benchmark of an id.
func camel(id string) string {
	var s strings.Builder
	for word := range strings.SplitSeq(id, "-") {
		s.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return s.String()
}

// A verdict is a goal of a question, for the last table.
type verdict struct {
	question
	goal
}

func printVerdicts(w io.Writer, all []verdict) {
	fmt.Fprint(w, "\n| question | goal | measured | |\n|---|---|---|---|\n")
	for _, v := range all {
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", v.title, v.text, v.measured, v.verdict)
	}
	fmt.Fprintln(w)
}
