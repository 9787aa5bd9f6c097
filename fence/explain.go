package fence

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/jackc/pgx/v5/pgconn"
)

// What the statements of this package need. PostgreSQL says which one is missing only in its message, and in the server's
// language: so a message is searched for these names, whole, and for no words.
var (
	functions = []string{
		"fence_raise", "fence_raise_all", "fence_check", "fence_whole", "fence_kept", "fence_credible", "fence_behind", "fence_row_lock", "fence_row_tombstone", "fence_row_bury", "fence_row_revive",
		"fence_state", "fence_begin_raised", "fence_begin_held", "fence_begin_stated", "protect", "unprotect", "verify",
	}
	relations = []string{"fences", "leases", "fencing_token"}
)

// explain adds what to do to errors of PostgreSQL that have one cure.
func explain(err error, cfg config) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	missing, forbidden := false, false
	switch pg.Code {
	case "25006":
		return fmt.Errorf("%w; %w: connect to the primary, and let the session and its transactions write", err, ErrReadOnly)
	case "3F000": // no such schema: "pglock"
		missing = inQuotes(pg.Message, cfg.schema)
	case "42P01": // no such table: "pglock.fences"
		for _, name := range relations {
			missing = missing || inQuotes(pg.Message, cfg.schema+"."+name)
		}
	case "42883": // no such function: pglock.fence_raise(text, text, integer, bigint)
		for _, name := range functions {
			missing = missing || bare(pg.Message, cfg.schema+"."+name)
		}
	case "42501": // no right to: pglock, or fence_raise
		forbidden = bare(pg.Message, cfg.schema)
		for _, name := range functions {
			forbidden = forbidden || bare(pg.Message, name)
		}
	}
	switch {
	case missing:
		return fmt.Errorf("%w; %w: run migrations.Up in this database, for schema %q", err, ErrNotMigrated, cfg.schema)
	case forbidden:
		return fmt.Errorf("%w; let the owner of the schema run SELECT %s.grant_locker('the_role')", err, cfg.quoted())
	}
	return err
}

// explain knows the table as well.
func (t target) explain(err error, cfg config) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	const behind = ".fence_behind(text, integer, "
	switch {
	case pg.Code == "42703" && bare(pg.Message, t.token): // no such column: t.fencing_token, or in quotes
		return fmt.Errorf("%w; a fenced table has a column for the token: ALTER TABLE %s ADD COLUMN %s bigint NOT NULL DEFAULT 0",
			err, t.table, quote(t.token))
	case pg.Code == "22003", // out of range, of whichever column; and what cannot stand beside a bigint
		(pg.Code == "42804" || pg.Code == "42846") && bare(pg.Message, "COALESCE"),
		pg.Code == "42883" && strings.Contains(pg.Message, behind) && !strings.Contains(pg.Message, behind+"bigint)"):
		return fmt.Errorf("%w; the column for the token must be a bigint: ALTER TABLE %s ALTER COLUMN %s TYPE bigint if it is not one",
			err, t.table, quote(t.token))
	case pg.Code == "42501" && bare(pg.Message, strings.Trim(t.table[strings.LastIndex(t.table, ".")+1:], `"`)):
		return fmt.Errorf("%w; a fenced write needs SELECT on the table beside the right of its verb, and an Insert UPDATE as well", err)
	}
	return explain(err, cfg)
}

// inQuotes reports whether a message has the name in quotation marks of any language: "pglock", »pglock«, « pglock ».
func inQuotes(message, name string) bool {
	return found(message, name, func(before, after string) bool {
		const spaces = " \u00a0\u202f" // French has one inside its marks
		before, after = strings.TrimRight(before, spaces), strings.TrimLeft(after, spaces)
		return before != strings.TrimRightFunc(before, isQuote) && after != strings.TrimLeftFunc(after, isQuote)
	})
}

// bare reports whether a message has the name, and not as a part of a longer one.
func bare(message, name string) bool {
	return found(message, name, func(before, after string) bool {
		return before == strings.TrimRightFunc(before, inName) && after == strings.TrimLeftFunc(after, inName) && !strings.HasPrefix(after, ".")
	})
}

// found looks for a name between texts that fit.
func found(message, name string, fits func(before, after string) bool) bool {
	for from := 0; ; from++ {
		at := strings.Index(message[from:], name)
		if at < 0 {
			return false
		}
		if from += at; fits(message[:from], message[from+len(name):]) {
			return true
		}
	}
}

// isQuote also takes the marks that Unicode does not count as quotation marks: ", ' and ` among them, and „.
func isQuote(r rune) bool {
	return strings.ContainsRune("\"'`„‚「」『』", r) || unicode.In(r, unicode.Pi, unicode.Pf)
}

// inName holds for what PostgreSQL's own names are made of. Some languages put no space around a name.
func inName(r rune) bool {
	return r == '_' || r == '$' || r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r))
}
