package fence

import (
	"context"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// What a fence costs is a round trip, unless it travels with BEGIN: as a literal call in the text of BEGIN, or, where statements
// follow at once, as one of a batch.

// borrow is the connection of what can begin a transaction with a batch, and what gives it back; nil for what may send one some other
// way.
func borrow(ctx context.Context, db any) (conn *pgx.Conn, release func(), err error) {
	switch x := db.(type) {
	case *pgxpool.Pool:
		c, err := x.Acquire(ctx)
		if err != nil {
			return nil, nil, err
		}
		return c.Conn(), c.Release, nil
	case *pgxpool.Conn:
		return x.Conn(), func() {}, nil
	case *pgx.Conn:
		return x, func() {}, nil
	}
	return nil, nil, nil
}

// beginWith begins a transaction, calls its fence and sends the batch that is first, and COMMIT if that is all of it. The answers to
// those are still to be read. There is neither a transaction nor an error where no batch can be sent.
func beginWith(ctx context.Context, db any, cfg config, fence question) (pgx.Tx, pgx.BatchResults, error) {
	conn, release, err := borrow(ctx, db)
	if conn == nil {
		return nil, nil, err
	}
	var all pgx.Batch
	all.BeginTx(pgx.TxOptions{IsoLevel: cfg.isolation})
	call := fence.statement(cfg)
	all.Queue(call.sql, call.args...)
	all.QueuedQueries = append(all.QueuedQueries, unsent(cfg.first).QueuedQueries...)
	if cfg.whole {
		all.Queue("commit").Fn = answered
	}
	results := send(ctx, conn, release, &all)
	tx := &lent{results.Tx(), release}
	_, err = results.Exec() // BEGIN
	if err == nil {
		_, err = results.Exec()
	}
	if err != nil {
		for _, q := range all.QueuedQueries {
			q.Fn = nil // which some modes would call with the error
		}
		_ = results.Close()           // the same
		unanswered := conn.IsClosed() // else it has been answered, or nothing was sent
		rollback(ctx, tx)
		if cfg.whole && unanswered && !uncommitted(err) {
			err = fmt.Errorf("%w: %w", ErrCommitUnknown, withCause(ctx, err))
		}
		return nil, nil, err
	}
	return tx, results, nil
}

// send sends a batch, and gives the connection back if that panics or exits: arguments run code of the caller's, and pgx has panics
// of its own. A connection that is left between two messages is good for nothing more.
func send(ctx context.Context, conn *pgx.Conn, release func(), b *pgx.Batch) pgx.BatchResults {
	sent := false
	defer func() {
		if sent {
			return
		}
		if conn.PgConn().IsBusy() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTime)
			defer cancel()
			_ = conn.Close(ctx)
		}
		release()
	}()
	results := conn.SendBatch(ctx, b)
	sent = true
	return results
}

// A lent transaction gives its connection back when it has ended.
type lent struct {
	pgx.Tx
	release func()
}

func (tx *lent) Commit(ctx context.Context) error {
	defer tx.release()
	return tx.Tx.Commit(ctx)
}

func (tx *lent) Rollback(ctx context.Context) error {
	defer tx.release()
	return tx.Tx.Rollback(ctx)
}

// hasFunction tells that somebody looks at an answer to the batch.
func hasFunction(b *pgx.Batch) bool {
	return b != nil && slices.ContainsFunc(b.QueuedQueries, func(q *pgx.QueuedQuery) bool { return q.Fn != nil })
}

// ending is how statements begin that end a transaction. ROLLBACK TO does not. The name of a prepared statement may begin like that, too.
var (
	ending          = regexp.MustCompile(blank + `(commit|end|abort|rollback|prepare\s+transaction)(\s|;|/\*|--|$)`)
	backToSavepoint = regexp.MustCompile(blank + `rollback\s+((work|transaction)\s+)?to\b`)
)

// blank is what may come before a statement: spaces, comments, and statements that are empty.
const blank = `(?i)^([\s;]|--[^\r\n]*[\r\n]|/\*([^*]|\*+[^*/])*\*+/)*`

func ends(sql string) bool { return ending.MatchString(sql) && !backToSavepoint.MatchString(sql) }

// unsent is a copy of a batch: pgx notes in one what a connection has prepared for it, and so sends it once.
func unsent(b *pgx.Batch) *pgx.Batch {
	var c pgx.Batch
	for _, q := range b.QueuedQueries {
		sent := c.Queue(q.SQL, q.Arguments...)
		if sent.Fn = q.Fn; sent.Fn == nil {
			sent.Fn = answered
		}
	}
	return &c
}

// answered stands for the function of a statement that has none: without it some modes go on to the next function when the statement
// has failed. What else there is to find, the end of the batch does.
func answered(results pgx.BatchResults) error {
	if _, err := results.Exec(); codeOf(err) != "" {
		return err
	}
	return nil
}

// statement is the call with parameters.
func (q question) statement(cfg config) statement {
	var s statement
	s.sql = q.call(cfg, s.text, func(n any) string {
		if t, ok := n.(Token); ok {
			return s.arg(int64(t)) + "::bigint"
		}
		return s.arg(n) + "::int"
	})
	return s
}

// withBegin is BEGIN and the call as text that means the same whatever the session has set.
func (q question) withBegin(cfg config) string {
	begin := "begin"
	if cfg.isolation != "" {
		begin += " isolation level " + string(cfg.isolation)
	}
	return begin + "; " + q.call(cfg, literal, func(n any) string { return fmt.Sprint(n) })
}

func (q question) call(cfg config, text func(string) string, number func(any) string) string {
	args := make([]string, len(q.args))
	for i, arg := range q.args {
		switch arg := arg.(type) {
		case string:
			args[i] = text(arg)
		case []string:
			names := make([]string, len(arg))
			for i, name := range arg {
				names[i] = text(name)
			}
			args[i] = "ARRAY[" + join(names) + "]"
		default:
			args[i] = number(arg)
		}
	}
	return fmt.Sprintf("CALL %s.%s(%s)", cfg.quoted(), q.name, join(args))
}

// literal is a text that means the same whatever the session has set.
func literal(s string) string {
	if !strings.ContainsFunc(s, special) {
		return "'" + s + "'"
	}
	return "pg_catalog.convert_from(pg_catalog.decode('" + hex.EncodeToString([]byte(s)) + "', 'hex'), 'UTF8')"
}

// special holds for all that quotes, escapes and encodings make something else of.
func special(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(" _-./:", r)
}
