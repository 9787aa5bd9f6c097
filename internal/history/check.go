package history

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Options says what a history can be held to. The zero value holds for every history.
type Options struct {
	// RenewalTolerance is how long after the stored expiry a renewal may be recorded. A renewal tests the clock on the
	// locked row and is recorded a moment later; nobody can come between, so a small gap revives nothing.
	RenewalTolerance time.Duration
	// OneMachine compares the trust windows of different processes, by their machine's wall clock. Leave it off when
	// processes are paused or stopped: a paused one learns of its loss only when it goes on, as documented.
	OneMachine bool
	// LossNeedsProof says which causes of a loss claim that the database ended the lease; nil asks for no proof. A
	// lapse on the client's own clock is legitimate while the database still shows the lease alive, so its cause is
	// not one of them. Comparing needs processes and database on one machine.
	LossNeedsProof func(cause string) bool
	// ClockTolerance is how far the instant of a loss and the database's clock may be apart.
	ClockTolerance time.Duration
	// LogLost says that the database lost its log, or part of it, in a failover. What clients were told is all the evidence:
	// their windows must not overlap, and of one name each next one must have a greater token, in all a new one.
	LogLost bool
}

// A Report is what Check found.
type Report struct {
	Violations []Violation
	Stats      Stats
}

// maxShown bounds an error: one fault of the protocol can be found thousands of times.
const maxShown = 10

// Err returns nil if nothing was violated, or else an error that shows the first violations.
func (r Report) Err() error {
	if len(r.Violations) == 0 {
		return nil
	}
	errs := []error{fmt.Errorf("history: %d violations in %d grants, %d told", len(r.Violations), r.Stats.Grants, r.Stats.Told)}
	for _, v := range r.Violations[:min(len(r.Violations), maxShown)] {
		errs = append(errs, errors.New(v.String()))
	}
	return errors.Join(errs...)
}

// Check looks for every kind of violation, in time n log n. It changes nothing in h.
func Check(h *History, opts Options) Report {
	c := &checker{opts: opts, history: h, changes: bySerial(h.Changes)}
	c.checkRecord()
	if opts.LogLost {
		c.checkToldTokens()
		c.checkTrustOverlaps()
		c.checkLosses()
		return Report{Violations: c.violations, Stats: c.stats}
	}
	c.replay()
	c.checkTokens()
	c.checkAcquisitions()
	c.checkGrantOverlaps()
	c.checkTold()
	c.checkTrustOverlaps()
	c.checkLosses()
	c.checkWrites()
	return Report{Violations: c.violations, Stats: c.stats}
}

// A checker is one run of Check. replay fills grants and the indexes; the checks only read them.
type checker struct {
	opts    Options
	history *History
	changes []Change             // in the database's order
	started map[string]time.Time // when the clock of each process began

	grants        []grant // in the database's order
	drawn         []int   // the places of the changes that have drawn a token, for a grant or for nobody
	byToken       map[tokenKey]int
	byAcquisition map[acquisitionKey]int
	groups        map[int64][]int // by token: the names of one acquisition

	violations []Violation
	stats      Stats
}

type tokenKey struct {
	lock  string
	slot  int
	token int64
}

// An acquisitionKey has the lock in it because one attempt may ask for several locks at once.
type acquisitionKey struct {
	lock, acquisition string
}

func (c *checker) report(kind Kind, events []Event, format string, args ...any) {
	c.violations = append(c.violations, Violation{Kind: kind, Events: events, Message: fmt.Sprintf(format, args...)})
}

// granted is the change that made grant g.
func (c *checker) granted(g int) Change { return c.changes[c.grants[g].change] }

// grantOf finds the database's grant behind what a client recorded.
func (c *checker) grantOf(g Grant) (int, bool) {
	if g.Acquisition != "" {
		n, ok := c.byAcquisition[acquisitionKey{g.Lock, g.Acquisition}]
		return n, ok
	}
	n, ok := c.byToken[tokenKey{g.Lock, g.Slot, g.Token}]
	return n, ok
}

// bySerial returns the changes in the database's order, without touching the caller's.
func bySerial(changes []Change) []Change {
	order := func(a, b Change) int { return cmp.Compare(a.Serial, b.Serial) }
	if slices.IsSortedFunc(changes, order) {
		return changes
	}
	changes = slices.Clone(changes)
	slices.SortStableFunc(changes, order)
	return changes
}
