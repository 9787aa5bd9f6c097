package fence

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// inferTypes lets the server say which types the parameters have, and prepares nothing by name: behind a pooler in
// transaction mode that is what works, whatever the caller's connections use themselves.
const inferTypes = pgx.QueryExecModeCacheDescribe

// sends bounds how often a write is sent that met a row which was replaced while it waited.
const sends = 5

func (t Table) write(ctx context.Context, db DB, g Grant, v verb, row Row, opts []Option) error {
	if err := g.Validate(); err != nil {
		return err
	}
	cfg, err := resolve(g, opts)
	if err != nil {
		return err
	}
	if err := cfg.refuse(fmt.Sprintf("%s of %s", v.name, t.Name), forRows); err != nil {
		return err
	}
	if isNil(db) {
		return fmt.Errorf("fence: %s of %s: %w: nil database", v.name, t.Name, ErrInvalid)
	}
	checked, columns, err := t.check(v, row)
	if err != nil {
		return err
	}
	s := checked.render(v, g, columns, row, cfg)
	name := t.rowName(row)
	for range sends {
		var a answer
		err := db.QueryRow(ctx, s.sql, append([]any{inferTypes}, s.args...)...).
			Scan(&a.wrote, &a.credible, &a.rows, &a.last, &a.tombstone, &a.moved)
		if err != nil {
			return checked.explain(fmt.Errorf("fence: %s of %s: %w", v.name, name, err), cfg)
		}
		if err, ok := a.verdict(v, g, cfg.again, name); ok {
			return g.Stale(err)
		}
	}
	return fmt.Errorf("fence: %s of %s: it changes faster than it can be written, or a trigger, a rule or row security hides it", v.name, name)
}

// An answer is what a statement found.
type answer struct {
	wrote     bool
	credible  bool  // the token can have been granted
	rows      int64 // how many rows have the key
	last      Token // the row's token
	tombstone Token // or the one that deleted it; 0 if none did
	moved     bool  // there is a row, but the statement began too early to lock it: send it again
}

// verdict judges an answer; false says that there is none yet.
func (a answer) verdict(v verb, g Grant, again bool, name string) (error, bool) {
	last := max(a.last, a.tombstone)
	say := func(err error) (error, bool) { return fmt.Errorf("fence: %s of %s: %w", v.name, name, err), true }
	switch {
	case a.wrote:
		return nil, true
	case !a.credible:
		return say(neverGranted(g))
	case a.rows > 1:
		return say(fmt.Errorf("%w: %d rows have the key: it is not unique", ErrInvalid, a.rows))
	case last > g.Token:
		return &StaleError{Resource: name, Lock: g.Lock, Token: g.Token, LastToken: last}, true
	case last == g.Token && (!again || a.rows == 1 && v.name == insert.name):
		return say(ErrAlreadyWritten)
	case a.rows == 1 && v.name == insert.name:
		return say(ErrRowExists)
	case a.rows == 1:
		return say(fmt.Errorf("nothing was written: a trigger, a rule or row security kept it"))
	case v.name == remove.name && a.tombstone == g.Token: // again: it is gone, as was wanted
		return nil, true
	case a.moved:
		return nil, false
	default:
		return say(ErrNoRow)
	}
}

func neverGranted(g Grant) error {
	return fmt.Errorf("%w: %d of lock %q slot %d", ErrNeverGranted, g.Token, g.Lock, g.Slot)
}
