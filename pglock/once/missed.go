package once

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A CatchUp says which of the occurrences that were missed while nothing ran are to be run after all.
type CatchUp int

const (
	// None of them: the schedule goes on from now. It is the zero value.
	None CatchUp = iota
	// Latest is the last one of them, for jobs of which one run makes up for those before: a clean-up, a report of the present state.
	Latest
	// All of them, in order, for jobs in which each counts for itself: the bill of each day.
	All
)

// MaxMissed bounds what one call of Missed answers.
const MaxMissed = 1000

// Missed answers the occurrences of a job that were due after the latest one on record and not after now, as far as the choice
// wants them, the earliest first. Run them with Run or Tx, before the schedule goes on:
//
//	for {
//		missed, err := runs.Missed(ctx, "bill", daily.Next, time.Now(), once.All)
//		if err != nil || len(missed) == 0 {
//			return err
//		}
//		for _, due := range missed { // every replica may: each is run once
//			err := runs.Run(ctx, "bill", due, bill)
//			if err != nil && !errors.Is(err, once.ErrRunning) && !errors.Is(err, once.ErrRan) {
//				return err // or the loop would ask for the same without an end
//			}
//		}
//	}
//
// next answers the first instant of the schedule after another one, and the zero time if there is none. It must depend on nothing
// else, as a cron expression does and "an hour from now" does not; it is asked in the zone of now. All answers [MaxMissed] at most, the earliest:
// the next call has the rest, once these are on record. Latest needs some dozens of calls of next, however many were missed. A job
// without a record has missed nothing.
//
// What was skipped is not found again once a later occurrence is on record. Nor is one missed that has failed or is unfinished, since it is on
// record: with Retry, take those from History. Records that were pruned are none.
//
// It blocks for one round trip, at most until ctx ends, and changes nothing. The error is one of Last, or ErrInvalid for a next that
// does not go forward.
func (r *Runner) Missed(ctx context.Context, job string, next func(after time.Time) time.Time, now time.Time, choice CatchUp) ([]time.Time, error) {
	if next == nil || choice < None || choice > All {
		return nil, fmt.Errorf("%w: what job %q has missed, of schedule %v, choice %d", ErrInvalid, job, next != nil, choice)
	}
	last, err := r.Last(ctx, job)
	switch {
	case errors.Is(err, ErrNoRecord):
		return nil, nil
	case err != nil || choice == None:
		return nil, err
	}
	s := schedule{job, next, now}
	if choice == Latest {
		return s.latest(last.Due)
	}
	return s.all(last.Due)
}

// A schedule is walked from one occurrence to the next.
type schedule struct {
	job  string
	next func(time.Time) time.Time
	now  time.Time
}

// after is the first occurrence after t; none if that is later than now.
func (s schedule) after(t time.Time) (due time.Time, some bool, err error) {
	due = s.next(t.In(s.now.Location()))
	if due.IsZero() || due.After(s.now) {
		return due, false, nil
	}
	if due = normal(due); !due.After(t) {
		return due, false, fmt.Errorf("%w: the schedule of job %q answers %v to what comes after %v", ErrInvalid, s.job, due, t)
	}
	return due, true, nil
}

func (s schedule) all(last time.Time) (missed []time.Time, err error) {
	for len(missed) < MaxMissed {
		due, some, err := s.after(last)
		if err != nil || !some {
			return missed, err
		}
		missed, last = append(missed, due), due
	}
	return missed, nil
}

// latest halves the time between the last occurrence that is known to be missed and one after which there is none.
func (s schedule) latest(last time.Time) (missed []time.Time, err error) {
	none := s.now
	for {
		due, some, err := s.after(last)
		if err != nil || !some {
			return missed, err
		}
		last, missed = due, []time.Time{due}
		for {
			middle := normal(last.Add(none.Sub(last) / 2))
			if !middle.After(last) {
				break
			}
			due, some, err := s.after(middle)
			if err != nil {
				return nil, err
			}
			if some {
				last, missed = due, []time.Time{due}
				break
			}
			none = middle
		}
	}
}
