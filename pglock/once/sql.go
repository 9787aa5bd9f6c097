package once

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
)

// The records are the database's; these are the calls. As in package pglock parameters are cast, and instants come in microseconds.
// Names and texts travel as bytes of UTF-8: the caller's sessions may have another client_encoding.
type statements struct{ start, end, endTx, record, records, prune string }

func statementsIn(schema string) statements {
	const columns = `SELECT (extract(epoch FROM due) OPERATOR(pg_catalog.*) 1000000)::bigint, outcome, attempt, pg_catalog.convert_to(owner, 'UTF8'), token,
  (extract(epoch FROM started_at) OPERATOR(pg_catalog.*) 1000000)::bigint, coalesce((extract(epoch FROM ended_at) OPERATOR(pg_catalog.*) 1000000)::bigint, 0),
  pg_catalog.convert_to(detail, 'UTF8')
FROM `
	in := func(sql string) string {
		sql = strings.NewReplacer("{job}", "pg_catalog.convert_from($1::bytea, 'UTF8')", "{detail}", "pg_catalog.convert_from($5::bytea, 'UTF8')").Replace(sql)
		return strings.ReplaceAll(sql, "pglock.", pgx.Identifier{schema}.Sanitize()+".")
	}
	return statements{
		start: in(`SELECT pglock.once_start({job}, $2::bigint, $3::bigint, $4::boolean)`),
		end:   in(`SELECT verdict, coalesce(last_token, 0) FROM pglock.once_end({job}, $2::bigint, $3::bigint, $4::text, {detail})`),
		// The grant is stated in the transaction of HeldTx, and gone with it: no row then, and no call.
		endTx: in(`SELECT e.verdict, coalesce(e.last_token, 0) FROM (SELECT $4::text AS how
  WHERE pg_catalog.length(pg_catalog.current_setting('fencedlock.grant', true)) OPERATOR(pg_catalog.>) 0 OFFSET 0) x,
  LATERAL pglock.once_end({job}, $2::bigint, $3::bigint, x.how, {detail}) e`),
		record:  in(columns + `pglock.once_records({job}, $2::bigint)`),
		records: in(columns + `pglock.once_records({job}, NULL, $2::int)`),
		prune:   in(`SELECT pglock.once_prune($1::bigint OPERATOR(pg_catalog.*) interval '1 us', $2::int)`),
	}
}

// ask sends a statement and calls each for every row of its answer.
func (r *Runner) ask(ctx context.Context, db fence.DB, sql string, args []any, each func(scan func(...any) error) error) error {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	rows.Close()
	return rows.Err()
}

// one is ask for an answer of one row.
func (r *Runner) one(ctx context.Context, db fence.DB, sql string, args []any, dest ...any) error {
	found := pgx.ErrNoRows
	err := r.ask(ctx, db, sql, args, func(scan func(...any) error) error {
		found = nil
		return scan(dest...)
	})
	if err != nil {
		return err
	}
	return found
}
