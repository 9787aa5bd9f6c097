package ticktest

import (
	"testing"
	"time"
)

func TestJudge(t *testing.T) {
	const tolerance = time.Second
	ran := func(tick int64) ask { return ask{Tick: tick, Token: 1} }
	held := func(tick int64) ask { return ask{Tick: tick, Refused: "held"} }
	late := func(a ask) ask { a.Late = tolerance; return a }
	failed := func(tick int64) ask { return ask{Tick: tick, Refused: "no answer"} }
	for what, test := range map[string]struct {
		asks          []ask
		judged, wrong int
	}{
		"once":                             {[]ask{ran(1), held(1), ran(2), held(2)}, 2, 0},
		"twice":                            {[]ask{ran(1), ran(1), ran(2)}, 2, 1},
		"lost":                             {[]ask{held(1), held(1), ran(2)}, 2, 1},
		"late":                             {[]ask{ran(1), late(ran(1)), held(2)}, 0, 0},
		"late before":                      {[]ask{late(ran(0)), held(1), ran(2), ran(2)}, 1, 1},
		"not known":                        {[]ask{failed(1), failed(1), ran(2)}, 0, 0},
		"nobody asked":                     {[]ask{ran(1)}, 1, 0},
		"before the first, after the last": {[]ask{ran(0), ran(0), ran(1), ran(2), ran(3), ran(3)}, 2, 0},
	} {
		v := judge(test.asks, 1, 2, tolerance)
		if v.ticks != 2 || v.judged != test.judged || len(v.wrong) != test.wrong {
			t.Errorf("%s: %+v, want %d judged and %d wrong", what, v, test.judged, test.wrong)
		}
	}
}

func TestTickAt(t *testing.T) {
	at := time.Unix(0, 10*int64(Every))
	for after, want := range map[time.Duration]int64{0: 10, -50 * time.Millisecond: 10, -200 * time.Millisecond: 9, time.Second: 10} {
		tick, late := tickAt(at.Add(after))
		if tick != want || late != max(after, 0) && want == 10 {
			t.Errorf("%v after tick 10: tick %d, %v late", after, tick, late)
		}
	}
}
