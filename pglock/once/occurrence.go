package once

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fencedlock/fencedlock/pglock"
)

const (
	// maxJob is the longest name of a job, in bytes: with an instant it makes the name of a lock, which has 255.
	maxJob = 200

	// lockPrefix begins the name of the lock of every occurrence.
	lockPrefix = "fencedlock.once/"

	// instant is how an instant stands in the name of a lock: of one length, so that no two occurrences have the same.
	instant = "2006-01-02T15:04:05.000000Z"
)

// An occurrence is one instant at which a job is due.
type occurrence struct {
	job string
	due time.Time // normal
}

// normal is an instant as the database has it: the same in every zone, on whichever clock it was read.
func normal(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// lock is the name of its lock, as the database derives it.
func (o occurrence) lock() string { return lockPrefix + o.due.Format(instant) + "/" + o.job }

func (o occurrence) String() string {
	return fmt.Sprintf("job %q of %s", o.job, o.due.Format(time.RFC3339Nano))
}

func (o occurrence) invalid(why string) error { return fmt.Errorf("%w: %v: %s", ErrInvalid, o, why) }

// heldBy says that another runs it, who has not begun its record yet.
func (o occurrence) heldBy(h *pglock.HeldError) *DuplicateError {
	return &DuplicateError{Record{Job: o.job, Due: o.due, Outcome: Running, Owner: h.Owner, Token: h.Token, Started: h.Since}}
}

// check refuses bad input before any SQL.
func check(job string, due time.Time, opts []Option) (occurrence, config, error) {
	o := occurrence{job, normal(due)}
	if err := checkJob(job); err != nil {
		return o, config{}, err
	}
	if due.IsZero() || o.due.Year() < 1 || o.due.Year() > 9999 {
		return o, config{}, o.invalid("want an instant of the schedule, between the years 1 and 9999")
	}
	var cfg config
	for _, opt := range opts {
		if opt.apply == nil {
			return o, cfg, o.invalid("a zero Option")
		}
		opt.apply(&cfg)
	}
	return o, cfg, nil
}

func checkJob(job string) error {
	switch {
	case job == "":
		return fmt.Errorf("%w: the job has no name", ErrInvalid)
	case len(job) > maxJob:
		return fmt.Errorf("%w: the name of job %q… has %d bytes, at most %d are allowed", ErrInvalid, strings.ToValidUTF8(job[:32], "?"), len(job), maxJob)
	case strings.ContainsRune(job, 0) || !utf8.ValidString(job):
		return fmt.Errorf("%w: the name of job %q must be UTF-8 without NUL", ErrInvalid, job)
	}
	return nil
}
