package main

import (
	"fmt"
	"html"
	"io"
	"math"
	"slices"
)

// plot draws a unit of a table: for each contender its median, and a line over its range. The axis is logarithmic; zeros have only
// their figure.
func (t *table) plot(w io.Writer, title, unit string) {
	const left, width, line, top = 230, 640, 24, 64
	var all []float64
	var rows []string
	for _, label := range t.labels {
		if v := t.of(label, unit); len(v) > 0 {
			rows, all = append(rows, label), append(all, positive(v)...)
		}
	}
	height := top + line*len(rows) + 40
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">
<rect width="100%%" height="100%%" fill="#fff"/>
<text x="16" y="24" font-size="15" font-weight="bold">%s</text>
<text x="16" y="42" fill="#555">%s: median and range, logarithmic scale</text>
`, left+width+90, height, left+width+90, height, html.EscapeString(title), html.EscapeString(unit))
	if len(all) == 0 {
		all = []float64{1} // nothing but zeros
	}
	low, high := bounds(all)
	x := func(v float64) float64 { return left + width*(math.Log10(v)-low)/(high-low) }
	bottom := top + line*len(rows)
	for _, v := range ticks(low, high) {
		fmt.Fprintf(w, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#ddd"/>`, x(v), x(v), top-8, bottom)
		fmt.Fprintf(w, `<text x="%.1f" y="%d" text-anchor="middle" fill="#555">%s</text>`+"\n", x(v), bottom+16, figure(v))
	}
	for i, label := range rows {
		y, colour := top+line*i+line/2, "#888"
		if label == ours.Name || label == oursFair.Name {
			colour = "#c2410c"
		}
		fmt.Fprintf(w, `<text x="%d" y="%d" text-anchor="end">%s</text>`, left-12, y+4, html.EscapeString(label))
		v, end := t.of(label, unit), float64(left)
		if p := positive(v); len(p) > 0 {
			end = x(slices.Max(p))
			fmt.Fprintf(w, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="%s" stroke-width="2"/>`, x(slices.Min(p)), end, y, y, colour)
			if m := median(v); m > 0 {
				fmt.Fprintf(w, `<circle cx="%.1f" cy="%d" r="4.5" fill="%s"/>`, x(m), y, colour)
			}
		}
		fmt.Fprintf(w, `<text x="%.1f" y="%d" fill="#333">%s</text>`+"\n", end+9, y+4, figure(median(v)))
	}
	fmt.Fprintln(w, `</svg>`)
}

// positive is what has a place on a logarithmic scale.
func positive(v []float64) []float64 {
	return slices.DeleteFunc(slices.Clone(v), func(x float64) bool { return x <= 0 })
}

// bounds are exponents of ten with all values between them, and some room.
func bounds(v []float64) (low, high float64) {
	low, high = math.Log10(slices.Min(v)), math.Log10(slices.Max(v))
	room := max(0.05, (high-low)*0.04)
	if high-low < 0.6 {
		room = (0.6 - (high - low)) / 2
	}
	return low - room, high + room
}

// ticks are 1, 2 and 5 times powers of ten, or the powers alone where there are many.
func ticks(low, high float64) (at []float64) {
	steps := []float64{1, 2, 5}
	if high-low > 3.5 {
		steps = steps[:1]
	}
	for e := math.Floor(low); e <= high; e++ {
		for _, s := range steps {
			if v := s * math.Pow(10, e); math.Log10(v) >= low && math.Log10(v) <= high {
				at = append(at, v)
			}
		}
	}
	return at
}
