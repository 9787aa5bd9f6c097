package fence

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// DefaultSchema is where the functions live that fences need, unless the grant or [Schema] says otherwise.
const DefaultSchema = "pglock"

// An Option changes one write or one transaction. One that cannot be meant is refused before anything is sent.
type Option struct{ set func(*config) }

type config struct {
	schema    string
	again     bool
	isolation pgx.TxIsoLevel
	isolated  bool // isolation was said
	limit     time.Duration
	limited   bool // limit was said
	shared    bool // the grant is
	also      []string
	first     *pgx.Batch
	firsts    int  // how often first was said
	whole     bool // nothing comes after first, and nobody looks at its answers
	returning *returning
}

// What an option is for. One that means nothing to a call is refused, not ignored.
type use struct{ again, isolation, limit, also, shared, first bool }

var (
	forRows      = use{again: true}
	forTx        = use{isolation: true, also: true, first: true}
	forCallersTx = use{also: true}
	forStatedTx  = use{isolation: true, first: true}
	forHeldTx    = use{isolation: true, limit: true, shared: true, first: true}
	forHeldCheck = use{limit: true, shared: true}
)

func (c config) refuse(what string, u use) error {
	switch {
	case c.shared && !u.shared:
		return fmt.Errorf("fence: %s: %w: its token orders no writes; use HeldTx, or acquire the lock alone", what, ErrShared)
	case c.returning != nil && !u.again:
		return fmt.Errorf("fence: %s: %w: Returning is for rows", what, ErrInvalid)
	case len(c.also) > 0 && !u.also:
		return fmt.Errorf("fence: %s: %w: Also is for Tx and Raise", what, ErrInvalid)
	case c.again && !u.again:
		return fmt.Errorf("fence: %s: %w: Again is for rows; a transaction lets the same grant pass", what, ErrInvalid)
	case c.isolated && !u.isolation:
		return fmt.Errorf("fence: %s: %w: Isolation is for transactions that are begun here", what, ErrInvalid)
	case c.firsts > 0 && !u.first:
		return fmt.Errorf("fence: %s: %w: First is for transactions that are begun here", what, ErrInvalid)
	case c.firsts > 1:
		return fmt.Errorf("fence: %s: %w: First twice: put the statements into one batch", what, ErrInvalid)
	case c.firsts > 0 && c.first == nil:
		return fmt.Errorf("fence: %s: %w: First without a batch", what, ErrInvalid)
	case c.firsts > 0 && slices.ContainsFunc(c.first.QueuedQueries, func(q *pgx.QueuedQuery) bool { return ends(q.SQL) }):
		return fmt.Errorf("fence: %s: %w: First with a statement that ends the transaction", what, ErrInvalid)
	case c.firsts > 0 && pgx.FailedBatchResults(c.first, nil).Tx() != nil: // the one way to see it
		return fmt.Errorf("fence: %s: %w: First of a batch that begins a transaction", what, ErrInvalid)
	case c.limited && !u.limit:
		return fmt.Errorf("fence: %s: %w: Limit is for HeldTx and Hold", what, ErrInvalid)
	}
	return nil
}

// isolations are what [Isolation] takes: pgx puts the level into its SQL as it is.
var isolations = []pgx.TxIsoLevel{pgx.Serializable, pgx.RepeatableRead, pgx.ReadCommitted, pgx.ReadUncommitted}

// Again lets the grant write a row that it has written before. Without it a grant writes a row once, which also refuses a
// replay of the first write that arrives after the second. It is for the methods of [Table]; an Insert of what is there is
// [ErrAlreadyWritten] all the same.
func Again() Option {
	return Option{func(c *config) { c.again = true }}
}

// Also names more resources, for [Tx] and [Raise], which raise all fences in the order of their names, so that transactions over
// the same resources cannot deadlock. They are of the same lock.
func Also(resources ...string) Option {
	return Option{func(c *config) { c.also = append(c.also, resources...) }}
}

// First sends the statements of b with BEGIN and the fence, in one round trip: [Tx], [HeldTx] and [StatedTx] run them before f, which
// may be nil then. What their functions (see [pgx.QueuedQuery]) make of the answers is there when f begins. If the fence refuses, none
// of them has run and no function is called; if one fails, or a function returns an error, the transaction is rolled back and the
// error returned as one of f's would be. With neither f nor a function COMMIT goes along, too: the whole transaction is one round
// trip, and a connection that is lost in it is [ErrCommitUnknown]. With it the fence costs less than the round trips that it saves.
//
// b is only read, so the same one can be sent by another try. Like f it neither commits nor ends the transaction: a statement that begins
// so is [ErrInvalid]; of one that does it further on an error tells afterwards, but not where COMMIT went along. It has no COPY, and does
// not begin a transaction itself ([pgx.Batch.BeginTx] is ErrInvalid: see [Isolation]). A function or an argument that panics costs the
// connection.
//
// How its statements are sent is the connection's default_query_exec_mode. What is to be prepared or described before takes another
// round trip, and where that fails, or an argument does not fit, the fence was not asked. On what is neither a *pgxpool.Pool nor a
// connection of pgx they are sent by themselves; database/sql has no batches.
func First(b *pgx.Batch) Option {
	return Option{func(c *config) { c.first, c.firsts = b, c.firsts+1 }}
}

// Limit bounds a transaction that holds its lock, a minute if it is not said: see [HeldTx]. d is from a millisecond to 24 days;
// anything else is [ErrInvalid].
func Limit(d time.Duration) Option {
	return Option{func(c *config) { c.limit, c.limited = d, true }}
}

// Isolation makes [Tx], [HeldTx] and [StatedTx] use another isolation level than the connection's default. The fence holds at every one; at
// repeatable read and serializable a transaction that began too early fails with 40001 and can be run again. level is one of
// pgx's constants; anything else is [ErrInvalid].
func Isolation(level pgx.TxIsoLevel) Option {
	return Option{func(c *config) { c.isolation, c.isolated = level, true }}
}

// Schema says where the functions that fences need were installed: the name that migrations.Up was given. It is for data that
// lives in another database than the lock, under another name; see [Grant.InSchema].
func Schema(name string) Option {
	return Option{func(c *config) { c.schema = name }}
}

func resolve(g Grant, opts []Option) (config, error) {
	c := config{schema: cmp.Or(g.schema, DefaultSchema), limit: defaultLimit, shared: g.shared}
	for _, o := range opts {
		if o.set != nil { // the zero Option says nothing
			o.set(&c)
		}
	}
	if c.isolated && !slices.Contains(isolations, c.isolation) {
		return c, fmt.Errorf("fence: %w isolation level %.80q: want one of %q", ErrInvalid, c.isolation, isolations)
	}
	if c.limit < time.Millisecond || c.limit > maxLimit {
		return c, fmt.Errorf("fence: %w limit %v: want %v to %v", ErrInvalid, c.limit, time.Millisecond, maxLimit)
	}
	if c.schema == "" || len(c.schema) > 63 || !storable(c.schema) {
		return c, fmt.Errorf("fence: %w schema name %q: want 1 to 63 bytes of UTF-8 without NUL", ErrInvalid, c.schema)
	}
	return c, nil
}

// quoted is the schema as SQL takes it.
func (c config) quoted() string { return pgx.Identifier{c.schema}.Sanitize() }
