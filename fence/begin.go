package fence

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// What a fence costs is a round trip, unless it travels with BEGIN: as a literal call in the text of BEGIN, or, where statements
// follow at once, as one of a batch.

// A sender can begin a transaction with a batch.
type sender interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// senderOf is nil for what may send a batch some other way.
func senderOf(db any) sender {
	switch x := db.(type) {
	case *pgxpool.Pool:
		return x
	case *pgxpool.Conn:
		return x
	case *pgx.Conn:
		return x
	}
	return nil
}

// beginWith begins a transaction, calls its fence and sends the batch that is first. The answers to that are still to be read.
func beginWith(ctx context.Context, db sender, cfg config, fence question) (pgx.Tx, pgx.BatchResults, error) {
	var all pgx.Batch
	all.BeginTx(pgx.TxOptions{IsoLevel: cfg.isolation})
	call := fence.statement(cfg)
	all.Queue(call.sql, call.args...)
	all.QueuedQueries = append(all.QueuedQueries, unsent(cfg.first).QueuedQueries...)
	results := db.SendBatch(ctx, &all)
	tx := results.Tx()
	_, err := results.Exec() // BEGIN
	if err == nil {
		_, err = results.Exec()
	}
	if err != nil {
		_ = results.Close() // the same
		rollback(ctx, tx)
		return nil, nil, err
	}
	return tx, results, nil
}

// unsent is a copy of a batch: pgx notes in one what a connection has prepared for it, and so sends it once.
func unsent(b *pgx.Batch) *pgx.Batch {
	var c pgx.Batch
	for _, q := range b.QueuedQueries {
		c.Queue(q.SQL, q.Arguments...).Fn = q.Fn
	}
	return &c
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
