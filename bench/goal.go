package main

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
)

// A goal is what was to be reached, and what was.
type goal struct {
	text     string // with the figure to reach
	measured string
	verdict  string
}

// tooNoisy is the noise beyond which a shortfall within it says nothing.
const tooNoisy = 1.0 / 3

// atLeast judges a figure that is to be large. Noise is a control pair's: a shortfall within it counts as met, unless it is large.
func atLeast(text string, want, got, noise float64) goal {
	return judge(text, got, got >= want, got*(1+noise) >= want, noise)
}

// atMost judges a figure that is to be small.
func atMost(text string, want, got, noise float64) goal {
	return judge(text, got, got <= want, got <= want*(1+noise), noise)
}

func judge(text string, got float64, met, nearly bool, noise float64) goal {
	g := goal{text: text, measured: figure(got)}
	switch {
	case math.IsNaN(got):
		g.measured, g.verdict = "–", "not measured"
	case met:
		g.verdict = "met"
	case nearly && noise > tooNoisy:
		g.verdict = fmt.Sprintf("undecided: the noise is %s %%", figure(noise*100))
	case nearly:
		g.verdict = fmt.Sprintf("met within the noise of %s %%", figure(noise*100))
	default:
		g.verdict = "**falls short**"
	}
	return g
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
