package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	if child() {
		return
	}
	os.Exit(m.Run())
}

func TestEveryQuestionIsAnswered(t *testing.T) {
	var out bytes.Buffer
	dir := t.TempDir()
	err := run(t.Context(), []string{"-smoke", "-out", dir}, &out)
	t.Log("\n" + out.String())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(os.Getenv("PGLOCK_TEST_REQUIRE"), "peers") && strings.Contains(out.String(), "is not installed, and left out") {
		t.Error("not all peers are there")
	}
	for _, q := range questions {
		for _, name := range []string{q.id + ".txt", q.id + ".svg"} {
			text, err := os.ReadFile(dir + "/" + name)
			if err != nil || !strings.Contains(string(text), ours.Name) {
				t.Errorf("%s (%v) does not name %s", name, err, ours.Name)
			}
		}
	}
}

// A system that fails is named, and takes no other along.
func TestAFailureIsNamed(t *testing.T) {
	b := &bench{out: io.Discard, random: rand.New(rand.NewPCG(1, 2))}
	table := newTable()
	err := b.interleave(t.Context(), table, 4, []contender{{Label: "good"}, {Label: "bad"}}, func(_ context.Context, c contender, round int) error {
		if c.Label == "bad" && round == 2 {
			return errors.New("broken")
		}
		table.add(c.Label, "x", float64(round))
		return nil
	})
	if err != nil || len(table.of("good", "x")) != 4 || len(table.of("bad", "x")) != 2 || table.failed["bad"] == nil {
		t.Errorf("%v, values %v, failed %v; want the good one to have gone on", err, table.values, table.failed)
	}
	var out bytes.Buffer
	table.markdown(&out, []string{"x"})
	if !strings.Contains(out.String(), "**bad failed**, and was left out from then on: broken") {
		t.Errorf("the failure is not in the table:\n%s", &out)
	}
}

func TestAShortfallWithinTheNoiseCountsAsMet(t *testing.T) {
	table := newTable()
	table.add("a", "x", 100, 100, 100, 100, 100)
	table.add("a, again", "x", 100, 95, 110, 100, 300) // the one that is far off is not what is called noise
	noise := table.noise("a", "a, again", "x")
	if noise < 0.09 || noise > 0.11 {
		t.Errorf("noise %v, want 0.1", noise)
	}
	for _, c := range []struct {
		goal goal
		want string
	}{
		{atLeast("", 1, 1, noise), "met"},
		{atLeast("", 1, 0.95, noise), "met within the noise of 10.0 %"},
		{atLeast("", 1, 0.85, noise), "**falls short**"},
		{atMost("", 1, 1, noise), "met"},
		{atMost("", 1, 1.05, noise), "met within the noise of 10.0 %"},
		{atMost("", 1, 1.15, noise), "**falls short**"},
		{atMost("", 1, median(nil), noise), "not measured"},
		{atMost("", 1, 1.15, 0.5), "undecided: the noise is 50 %"},
		{atMost("", 1, 0.9, 0.5), "met"},
	} {
		if c.goal.verdict != c.want {
			t.Errorf("measured %s: %q, want %q", c.goal.measured, c.goal.verdict, c.want)
		}
	}
}
