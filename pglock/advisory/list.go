package advisory

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// A Querier is what List asks: a *pgxpool.Pool, a *pgx.Conn or a pgx.Tx.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// List answers who holds which advisory lock of the database, and who waits for one and for whom, of whatever program. Given
// keys, it answers for these only, and its entries have the names of the keys. Entries are in the order of pg_locks' columns, those who
// hold a lock before those who wait for it.
//
// Who waits in Acquire of a Client is listed too, though such a wait is not one that PostgreSQL knows of; who waits in Acquire of
// a Tx is not. It is a look at a moment, or two. It blocks for two round trips, at most until ctx ends, and changes nothing.
// The error is ErrInvalidKey or ErrInvalidOption, before any SQL, or what the driver says.
func List(ctx context.Context, db Querier, keys ...Key) ([]Entry, error) {
	for _, key := range keys {
		if err := key.check(); err != nil {
			return nil, err
		}
	}
	if isNil(db) {
		return nil, fmt.Errorf("%w: List without a database", ErrInvalidOption)
	}
	query := func(ctx context.Context, sql string, args ...any) row {
		return db.QueryRow(ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...)
	}
	all, err := entries(ctx, query, entriesSQL)
	if err != nil {
		return nil, fmt.Errorf("advisory: list: %w", err)
	}
	var text string
	blockers := map[string][]int32{}
	if slices.ContainsFunc(all, func(e Entry) bool { return e.Waits }) {
		if err = query(ctx, blockersSQL).Scan(&text); err == nil {
			err = json.Unmarshal([]byte(text), &blockers)
		}
		if err != nil {
			return nil, fmt.Errorf("advisory: list: %w", err)
		}
	}
	for i, e := range all {
		if e.Waits {
			all[i].BlockedBy = blockers[strconv.Itoa(int(e.PID))]
		}
	}
	return only(resolveMarks(all), keys), nil
}

// only keeps the entries of the keys, and gives them their names.
func only(all []Entry, keys []Key) []Entry {
	if len(keys) == 0 {
		return all
	}
	var some []Entry
	for _, e := range all {
		if i := slices.IndexFunc(keys, e.Key.Same); i >= 0 {
			e.Key = keys[i]
			some = append(some, e)
		}
	}
	return some
}
