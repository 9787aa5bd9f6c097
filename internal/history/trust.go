package history

import (
	"fmt"
	"time"
)

// A Process says when the clock of a recorder began, so that its durations can be placed on the machine's wall clock.
type Process struct {
	Name    string    `json:"name"`
	Started time.Time `json:"started"`
}

// A Trust is the window in which a client acted as the holder of a grant. It begins when the client was told, and ends
// when the context of its lease ended: by a loss, by the call of Release, by a lapse. Both ends are instants of the
// monotonic clock of its process, since the start of the recorder.
type Trust struct {
	Grant
	Process string        `json:"process"`
	From    time.Duration `json:"from"`
	Until   time.Duration `json:"until,omitempty"`
	// Open says that the lease was still trusted when the record ended; Until says nothing then.
	Open bool `json:"open,omitempty"`
	// Cause is why the lease was lost. It is empty when the holder released it.
	Cause string `json:"cause,omitempty"`
}

// Lost reports whether the window ended by a loss.
func (t Trust) Lost() bool { return !t.Open && t.Cause != "" }

// String shows the window on the clock of its process.
func (t Trust) String() string {
	end := fmt.Sprintf("until %v, released", t.Until)
	switch {
	case t.Open:
		end = "still trusted"
	case t.Lost():
		end = fmt.Sprintf("until %v, lost: %s", t.Until, t.Cause)
	}
	return fmt.Sprintf("trust: %v in %s from %v %s", t.Grant, t.Process, t.From, end)
}
