package fence

import (
	"context"
	"fmt"
)

// sends bounds how often a write is sent that met a row which was replaced while it waited.
const sends = 5

const (
	maxRows       = 1000  // in one statement
	maxParameters = 65535 // PostgreSQL counts them in 16 bits
)

func (t Table) write(ctx context.Context, db DB, g Grant, v verb, rows []Row, opts []Option) error {
	if err := g.Validate(); err != nil {
		return err
	}
	cfg, err := resolve(g, opts)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%s of %s", v.name, t.Name)
	if err := cfg.refuse(what, forRows); err != nil {
		return err
	}
	if isNil(db) {
		return fmt.Errorf("fence: %s: %w: nil database", what, ErrInvalid)
	}
	checked, columns, err := t.check(v, rows)
	if err != nil {
		return err
	}
	wanted := len(rows)
	if v.name == rekey.name {
		wanted = 1
	}
	into, err := cfg.returning.receive(wanted)
	if err != nil {
		return fmt.Errorf("fence: %s: %w", what, err)
	}
	s := checked.render(v, g, columns, rows, into.columns, cfg)
	if len(s.args) > maxParameters {
		return fmt.Errorf("fence: %s: %w: %d values in one statement, at most %d can be sent: write fewer rows at a time",
			what, ErrInvalid, len(s.args), maxParameters)
	}
	if wanted == 1 {
		what = fmt.Sprintf("%s of %s", v.name, t.rowName(rows[0]))
	}
	err = t.send(ctx, db, g, checked, v, s, rows, into, cfg, what)
	if g.Slot > 0 { // a row has no room for the slot: it may be the holder of another one that has written, and nothing is lost
		return err
	}
	return g.Stale(err)
}

func (t Table) send(ctx context.Context, db DB, g Grant, checked target, v verb, s statement, rows []Row, into received, cfg config, what string) error {
	for sent := 1; ; sent++ {
		answers := make(answers, 0, len(rows))
		err := ask(ctx, db, s.sql, s.args, func(scan func(...any) error) error {
			var a answer
			err := scan(append([]any{&a.wrote, &a.credible, &a.rows, (*int64)(&a.last), (*int64)(&a.tombstone), &a.moved, &a.behind}, into.row(len(answers))...)...)
			answers = append(answers, a)
			return err
		})
		switch {
		case err == nil && len(answers) != len(rows):
			return fmt.Errorf("fence: %s: %d answers for %d rows: a rule of the table", what, len(answers), len(rows))
		case sent < sends && alone(db) && retriable(v, err):
			continue // nothing was written, and a later snapshot sees more
		case err != nil:
			return checked.explain(fmt.Errorf("fence: %s: %w", what, err), cfg)
		}
		if err, ok := answers.verdict(v, g, cfg, func(i int) string { return t.rowName(rows[i]) }); ok {
			if err == nil {
				into.keep()
			}
			return err
		}
		if sent == sends {
			return fmt.Errorf("fence: %s: it changes faster than it can be written, or a trigger, a rule or row security hides it", what)
		}
	}
}

// retriable tells an error that another try may not have: a serialization failure, or, where a key is changed, a row at the new
// one that came after the snapshot.
func retriable(v verb, err error) bool {
	code := codeOf(err)
	return code == "40001" || code == "23505" && v.name == rekey.name
}

// An answer is what a statement found of one row.
type answer struct {
	wrote     bool
	credible  bool  // the token can have been granted
	rows      int64 // how many rows have the key
	last      Token // the row's token
	tombstone Token // or the one that deleted it; 0 if none did
	moved     bool  // there is a row, but the statement began too early to lock it: send it again
	behind    bool  // the lock has not granted the token that was there
}

type answers []answer

// verdict judges what was found; false says that there is none yet.
func (as answers) verdict(v verb, g Grant, cfg config, name func(int) string) (error, bool) {
	wrote, moved, gone := true, false, 0
	for i, a := range as {
		if err := a.refusal(verbOf(v, i), g, cfg, name(i)); err != nil {
			return err, true
		}
		wrote, moved = wrote && a.wrote, moved || a.moved
		if !a.wrote && !a.moved && a.rows == 0 && v.name == remove.name {
			gone = i + 1
		}
	}
	switch {
	case wrote:
		return nil, true
	case moved:
		return nil, false
	case gone > 0 && as.allGone(): // again: it is as was wanted
		return nil, true
	case gone > 0:
		return fmt.Errorf("fence: %s of %s: %w", v.name, name(gone-1), ErrNoRow), true
	}
	return fmt.Errorf("fence: %s of %s: nothing was written: a trigger, a rule or row security kept it", v.name, name(0)), true
}

// verbOf tells that a row gets its new key as if it were inserted there.
func verbOf(v verb, i int) verb {
	if v.name == rekey.name && i == 1 {
		return insert
	}
	return v
}

func (as answers) allGone() bool {
	for _, a := range as {
		if a.rows > 0 {
			return false
		}
	}
	return true
}

// refusal says what speaks against writing the row, if anything does.
func (a answer) refusal(v verb, g Grant, cfg config, name string) error {
	last := max(a.last, a.tombstone)
	say := func(err error) error { return fmt.Errorf("fence: %s of %s: %w", v.name, name, err) }
	switch {
	case a.wrote:
		return nil
	case !a.credible:
		return say(neverGranted(g))
	case a.rows > 1:
		return say(fmt.Errorf("%w: %d rows have the key: it is not unique", ErrInvalid, a.rows))
	case last > g.Token:
		return &StaleError{Resource: name, Lock: g.Lock, Token: g.Token, LastToken: last, Behind: a.behind, cure: cfg.raiseFloor(last), row: true}
	case last == g.Token && (!cfg.again || a.rows == 1 && v.name == insert.name):
		return say(ErrAlreadyWritten)
	case a.rows == 1 && v.name == insert.name:
		return say(ErrRowExists)
	case a.rows == 0 && !a.moved && (v.name == update.name || v.name == rekey.name || v.name == remove.name && a.tombstone != g.Token):
		return say(ErrNoRow)
	}
	return nil
}

func neverGranted(g Grant) error {
	return fmt.Errorf("%w: %d of lock %q slot %d", ErrNeverGranted, g.Token, g.Lock, g.Slot)
}
