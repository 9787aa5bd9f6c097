package ticktest

import (
	"fmt"
	"time"
)

// An ask is one replica's question for one tick.
type ask struct {
	Tick    int64
	Replica string
	Late    time.Duration // the answer, after the tick, by the replica's clock
	Token   int64
	Refused string // empty: it ran the job
}

func (a ask) String() string {
	what := "ran, token " + fmt.Sprint(a.Token)
	if a.Refused != "" {
		what = "refused: " + a.Refused
	}
	return fmt.Sprintf("tick %d, replica %s, %v late: %s", a.Tick, a.Replica, a.Late, what)
}

// A verdict is how many of the ticks were judged, and what was wrong with those. The others prove nothing: a replica was so late, or
// the database so slow, that nobody promises anything; or nobody asked at all.
type verdict struct {
	ticks, judged int
	wrong         []string
}

// judge judges the ticks from first to last, whose answers may be late by the tolerance.
func judge(asks []ask, first, last int64, tolerance time.Duration) (v verdict) {
	ran, asked, unsure := map[int64]int{}, map[int64]int{}, map[int64]bool{}
	for _, a := range asks {
		asked[a.Tick]++
		if a.Refused == "" {
			ran[a.Tick]++
		}
		if a.Late >= tolerance || a.Refused != "" && a.Refused != "held" {
			unsure[a.Tick] = true
		}
	}
	for tick := first; tick <= last; tick++ {
		v.ticks++
		if asked[tick] == 0 || unsure[tick] || unsure[tick-1] {
			continue
		}
		v.judged++
		if ran[tick] != 1 {
			v.wrong = append(v.wrong, fmt.Sprintf("tick %d ran %d times, asked for by %d", tick, ran[tick], asked[tick]))
		}
	}
	return v
}
