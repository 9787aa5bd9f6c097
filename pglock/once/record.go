package once

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/pglock"
)

const (
	// recordTime bounds how long the beginning and the end of an attempt are tried to be recorded.
	recordTime = 15 * time.Second

	// tryTime bounds each try: a silent connection must leave time for another.
	tryTime = 5 * time.Second

	// tryAgain is the pause between two.
	tryAgain = 100 * time.Millisecond

	// maxDetail bounds what is kept of an error, in bytes.
	maxDetail = 4096

	// pruneChunk is how many records one statement of Prune forgets: it keeps transactions short.
	pruneChunk = 1000
)

// An Outcome is what became of an occurrence.
type Outcome string

const (
	// Running: it was begun, and the lease of whoever runs it lives.
	Running Outcome = "running"
	// Done: f returned nil, or, with Tx, its transaction was committed.
	Done Outcome = "done"
	// Failed: f returned an error, panicked, or called runtime.Goexit.
	Failed Outcome = "failed"
	// Unfinished: it was begun, its lease is over, and nobody has said how it ended. Its runner crashed, or is cut off and may
	// say so yet.
	Unfinished Outcome = "unfinished"
)

// A Record is what the database knows of an occurrence that was run. Instants other than Due are of the database's clock.
type Record struct {
	Job     string
	Due     time.Time // in UTC
	Outcome Outcome
	Attempt int         // which one this was: 1, or more with Retry
	Owner   string      // who ran it: the label of its client, as its Config.Owner has it
	Token   fence.Token // of the lease that it ran under
	Started time.Time
	Ended   time.Time // zero if Running or Unfinished
	Detail  string    // what it failed with: the first 4096 bytes
}

// Last answers the latest occurrence of a job that was run, which has the latest Due; [ErrNoRecord] if there is none. It blocks for one
// round trip, at most until ctx ends, and changes nothing. Other errors are those of History.
func (r *Runner) Last(ctx context.Context, job string) (Record, error) {
	found, err := r.History(ctx, job, 1)
	switch {
	case err != nil:
		return Record{}, err
	case len(found) == 0:
		return Record{}, fmt.Errorf("%w: job %q", ErrNoRecord, job)
	}
	return found[0], nil
}

// History answers the occurrences of a job that were run, the latest first, most of them at most. It blocks for one round trip, at
// most until ctx ends, and changes nothing. The error is ErrInvalid, pglock.ErrNotMigrated, pglock.ErrNotAllowed, or what the
// driver says, wrapped.
func (r *Runner) History(ctx context.Context, job string, most int) ([]Record, error) {
	if err := checkJob(job); err != nil {
		return nil, err
	}
	if most < 1 || most > 1<<31-1 {
		return nil, fmt.Errorf("%w: %d records of job %q", ErrInvalid, most, job)
	}
	return r.read(ctx, job, nil, most)
}

// Prune forgets occurrences of all jobs that were due, and are over, for age or longer, with their locks, and answers how many. What
// is forgotten can be run again: keep records for longer than any delivery can be late, a client can be away, and, for
// jobs with [Runner.Missed], than the time from one occurrence to the next.
//
// Only the owner of the schema may, since a service that could would be able to run anything anew. age below the cap on TTLs counts as
// the cap. It works in short transactions, and blocks until all is done or ctx ends; what was forgotten by then is counted beside an
// error, which is one of those of History, or pglock.ErrReadOnly.
func (r *Runner) Prune(ctx context.Context, age time.Duration) (total int, err error) {
	if age < 0 {
		return 0, fmt.Errorf("%w: Prune of records that are %v old", ErrInvalid, age)
	}
	for {
		var n int
		err := r.one(ctx, r.db, r.sql.prune, []any{age.Microseconds(), pruneChunk}, &n)
		if err != nil {
			return total, r.explain("prune records", err)
		}
		if total += n; n < pruneChunk { // the next one would find what has come of age meanwhile, and so on
			return total, nil
		}
	}
}

// read answers the latest records of a job, or the one of an occurrence.
func (r *Runner) read(ctx context.Context, job string, due *time.Time, most int) (found []Record, err error) {
	sql, args := r.sql.records, []any{[]byte(job), most}
	if due != nil {
		sql, args = r.sql.record, []any{[]byte(job), due.UnixMicro()}
	}
	err = r.ask(ctx, r.db, sql, args, func(scan func(...any) error) error {
		rec := Record{Job: job}
		var at, started, ended int64
		var owner, detail []byte
		err := scan(&at, &rec.Outcome, &rec.Attempt, &owner, &rec.Token, &started, &ended, &detail)
		rec.Owner, rec.Detail = string(owner), string(detail)
		rec.Due, rec.Started = time.UnixMicro(at).UTC(), time.UnixMicro(started)
		if ended != 0 {
			rec.Ended = time.UnixMicro(ended)
		}
		found = append(found, rec)
		return err
	})
	return found, r.explain(fmt.Sprintf("read the record of job %q", job), err)
}

// start records that an attempt begins. A lost reply is settled by its token.
func (r *Runner) start(ctx context.Context, o occurrence, l *pglock.Lease, cfg config) (verdict string, err error) {
	err = r.insist(ctx, func(ctx context.Context) error {
		return r.one(ctx, r.db, r.sql.start, []any{[]byte(o.job), o.due.UnixMicro(), int64(l.Token()), cfg.retry}, &verdict)
	})
	return verdict, r.explain(fmt.Sprintf("begin %v", o), err)
}

// end records how an attempt ended, whatever became of ctx. errDone says that it was recorded as done before.
func (r *Runner) end(ctx context.Context, o occurrence, l *pglock.Lease, how Outcome, why string) error {
	send := func(ctx context.Context) error { return r.endOnce(ctx, r.db, r.sql.end, o, l, how, why) }
	err := r.insist(context.WithoutCancel(ctx), send)
	if state(err) == "22P05" { // the encoding of the database lacks a character
		why = strconv.QuoteToASCII(why)
		err = r.insist(context.WithoutCancel(ctx), send)
	}
	if err == nil || errors.Is(err, errDone) || errors.Is(err, fence.ErrStale) {
		return err
	}
	return fmt.Errorf("%w: %v is %s, and may stay on record as not finished: %w", ErrNotRecorded, o, how, err)
}

// errDone: the attempt has failed, and is on record as done, because its transaction was committed.
var errDone = errors.New("done")

// errNoEnd: the record is not one that this attempt can end. That it was pruned, or lost in a failover, no second try cures.
var errNoEnd = errors.New("there is nothing to end")

// endTx records a success in the transaction that holds the lease, unless f has ended that.
func (r *Runner) endTx(ctx context.Context, tx fence.DB, o occurrence, l *pglock.Lease) error {
	err := r.endOnce(ctx, tx, r.sql.endTx, o, l, Done, "")
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("once: %v: f has ended the transaction that it was given, by SQL of its own: look at what of its writes is there", o)
	}
	return err
}

// endOnce records it by one statement.
func (r *Runner) endOnce(ctx context.Context, db fence.DB, sql string, o occurrence, l *pglock.Lease, how Outcome, why string) error {
	var verdict string
	var last fence.Token
	err := r.one(ctx, db, sql, []any{[]byte(o.job), o.due.UnixMicro(), int64(l.Token()), string(how), []byte(clip(why))}, &verdict, &last)
	switch {
	case err != nil:
		return err
	case verdict == string(how):
		return nil
	case verdict == string(Done):
		return errDone
	case verdict == "stale":
		return l.Grant().Stale(&fence.StaleError{Resource: "the record of " + o.String(), Lock: l.Name(), Token: l.Token(), LastToken: last})
	}
	return fmt.Errorf("%w: the record is %s", errNoEnd, verdict)
}

// insist tries to record something until it is recorded, refused, or the time or ctx is over. What it sends, it can send again.
func (r *Runner) insist(ctx context.Context, send func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, recordTime, fmt.Errorf("not within %v: %w", recordTime, context.DeadlineExceeded))
	defer cancel()
	var why error
	for {
		try, end := context.WithTimeout(ctx, tryTime)
		err := send(try)
		end()
		if err == nil || !passing(err) {
			return err
		}
		if why == nil || ctx.Err() == nil { // a try that ctx has ended hides why there were several
			why = err
		}
		select {
		case <-time.After(tryAgain):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), why)
		}
	}
}

// passing: it may work when it is sent again.
func passing(err error) bool {
	if errors.Is(err, errDone) || errors.Is(err, errNoEnd) || errors.Is(err, fence.ErrStale) {
		return false
	}
	switch code := state(err); {
	case code == "", code == "25006": // of the connection; of a standby, which a failover may make the primary
		return true
	default:
		// Connections, conflicts of transactions, lack of resources, locks, and what an operator does.
		return strings.Contains("08 40 53 55 57", code[:2])
	}
}

// clip makes of an error's text one that can be kept.
func clip(s string) string {
	s = strings.ReplaceAll(s, "\x00", "")
	if len(s) > maxDetail {
		s = s[:maxDetail]
	}
	return strings.ToValidUTF8(s, "")
}
