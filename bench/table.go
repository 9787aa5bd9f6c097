package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// A table has what was measured: for each contender and unit a value per round, or per event where the unit says so.
type table struct {
	labels []string
	values map[string]map[string][]float64
	failed map[string]error
}

func newTable() *table {
	return &table{values: map[string]map[string][]float64{}, failed: map[string]error{}}
}

func (t *table) add(label, unit string, v ...float64) {
	if t.values[label] == nil {
		t.labels = append(t.labels, label)
		t.values[label] = map[string][]float64{}
	}
	t.values[label][unit] = append(t.values[label][unit], v...)
}

func (t *table) of(label, unit string) []float64 { return t.values[label][unit] }

// ratios are a's values over b's, round by round.
func (t *table) ratios(a, b, unit string) []float64 {
	x, y := t.of(a, unit), t.of(b, unit)
	r := make([]float64, min(len(x), len(y)))
	for i := range r {
		r[i] = x[i] / y[i]
	}
	return r
}

// noise is how far the ratios of a control pair, which is one system measured twice, stray from 1: three in four less than that.
func (t *table) noise(a, again, unit string) float64 {
	r := t.ratios(again, a, unit)
	if len(r) == 0 {
		return 0
	}
	for i := range r {
		r[i] = math.Abs(math.Log(r[i]))
	}
	return math.Expm1(quantile(r, 0.75))
}

// control says what the pair that noise is of looked like.
func (t *table) control(s *System, unit string) string {
	return fmt.Sprintf("Control pair: %s of %q and of the same once more, %s to 1.", unit, s.Name, spread(t.ratios(again(s), s.Name, unit)))
}

// markdown is the table with a median and a range in each cell.
func (t *table) markdown(w io.Writer, units []string) {
	fmt.Fprintf(w, "| system | %s |\n|---|%s\n", strings.Join(units, " | "), strings.Repeat("---|", len(units)))
	for _, label := range t.labels {
		cells := make([]string, len(units))
		for i, unit := range units {
			cells[i] = spread(t.of(label, unit))
		}
		fmt.Fprintf(w, "| %s | %s |\n", label, strings.Join(cells, " | "))
	}
	for _, label := range sortedKeys(t.failed) {
		fmt.Fprintf(w, "\n**%s failed**, and was left out from then on: %s\n", label, oneLine(t.failed[label]))
	}
}

// benchstat writes the values as `go test -bench` would: one line a round.
func (t *table) benchstat(w io.Writer, id string) {
	for _, label := range t.labels {
		units := sortedKeys(t.values[label])
		for i := 0; ; i++ {
			line := ""
			for _, unit := range units {
				if v := t.of(label, unit); i < len(v) {
					line += fmt.Sprintf("\t%.5g %s", v[i], strings.ReplaceAll(unit, " ", "-"))
				}
			}
			if line == "" {
				break
			}
			fmt.Fprintf(w, "Benchmark%s/%s\t1%s\n", id, strings.ReplaceAll(label, " ", "_"), line)
		}
	}
}

func spread(v []float64) string {
	switch len(v) {
	case 0:
		return "–"
	case 1:
		return figure(v[0])
	}
	return fmt.Sprintf("%s [%s–%s]", figure(median(v)), figure(slices.Min(v)), figure(slices.Max(v)))
}

// figure has three digits that say something.
func figure(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100 || v == math.Trunc(v):
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 0.1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.2g", v)
}

func median(v []float64) float64 { return quantile(v, 0.5) }

// quantile is NaN of nothing.
func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	v = slices.Sorted(slices.Values(v))
	at := q * float64(len(v)-1)
	low, high := v[int(math.Floor(at))], v[int(math.Ceil(at))]
	return low + (high-low)*(at-math.Floor(at))
}

func in(unit time.Duration, d []time.Duration) []float64 {
	v := make([]float64, len(d))
	for i := range d {
		v[i] = float64(d[i]) / float64(unit)
	}
	return v
}
