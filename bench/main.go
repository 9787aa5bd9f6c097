// Bench measures fencedlock beside other ways to lock, all in one run on one machine. See README.md.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	if child() {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	fast := flags.Bool("quick", false, "in ten minutes, with fewer repeats")
	once := flags.Bool("smoke", false, "everything once, for a moment: the figures mean nothing, and are not kept unless -out says where")
	only := flags.String("only", "", "ids of questions, separated by commas; default all: "+ids())
	dir := flags.String("out", "", "folder for raw values and plots; default results")
	if err := flags.Parse(args); err != nil {
		return err
	}
	wanted, err := choose(*only)
	if err != nil {
		return err
	}
	seed := rand.Uint64()
	b := &bench{size: full, mode: "full", out: out, began: time.Now(), random: rand.New(rand.NewPCG(seed, 0)), seed: seed}
	switch {
	case *once:
		b.size, b.mode = smoke, "smoke: the figures mean nothing"
	case *fast:
		b.size, b.mode = quick, "quick"
	}
	if *dir == "" && !*once {
		*dir = "results"
	}
	if *dir != "" {
		if err := os.MkdirAll(*dir, 0o755); err != nil {
			return err
		}
	}
	defer b.stop()
	if err := b.start(ctx); err != nil {
		return err
	}
	return b.answerAll(ctx, wanted, *dir)
}

// answerAll asks one question after the other. One that fails is named at the end, and takes no other along.
func (b *bench) answerAll(ctx context.Context, wanted []question, dir string) error {
	var report bytes.Buffer
	both := io.MultiWriter(b.out, &report)
	b.introduce(both)
	var verdicts []verdict
	failed := b.failed
	for _, q := range wanted {
		b.say("%s: %s", q.id, q.title)
		a, err := q.ask(b, ctx)
		if ctx.Err() != nil {
			failed = errors.Join(failed, context.Cause(ctx))
			break
		}
		if err == nil && dir != "" {
			err = b.save(dir, q, a)
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", q.id, err))
			verdicts = append(verdicts, verdict{q, goal{"all", "–", "not measured: " + oneLine(err)}})
			continue
		}
		a.print(b.out, q, "")
		a.print(&report, q, q.id+".svg")
		for label, err := range a.failed {
			failed = errors.Join(failed, fmt.Errorf("%s: %s: %w", q.id, label, err))
		}
		for _, g := range a.goals {
			verdicts = append(verdicts, verdict{q, g})
		}
	}
	printVerdicts(both, verdicts)
	if ctx.Err() != nil {
		b.say("interrupted")
	} else {
		b.say("all done")
	}
	if dir != "" && len(verdicts) > 0 && len(wanted) == len(questions) {
		failed = errors.Join(failed, os.WriteFile(filepath.Join(dir, "README.md"), report.Bytes(), 0o644))
	}
	return failed
}

func ids() string {
	var all []string
	for _, q := range questions {
		all = append(all, q.id)
	}
	return strings.Join(all, ",")
}

func choose(only string) ([]question, error) {
	if only == "" {
		return questions, nil
	}
	var wanted []question
	for _, q := range questions {
		for id := range strings.SplitSeq(only, ",") {
			if id == q.id {
				wanted = append(wanted, q)
			}
		}
	}
	if len(wanted) != strings.Count(only, ",")+1 {
		return nil, fmt.Errorf("-only %s: there are %s", only, ids())
	}
	return wanted, nil
}
