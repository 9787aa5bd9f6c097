package fence

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DB is what a fenced write is sent over: a *pgx.Conn, a *pgxpool.Pool or a pgx.Tx, or what [SQL] makes of one of database/sql.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// ask sends a statement and calls each for every row of its answer. The first column must be pg_backend_pid(), which it keeps for
// itself.
//
// A statement is prepared once on each connection, since planning it takes longer than running it; but only where the process
// that answers is the one that the connection was made to. Anything else is a pooler, which may send the next statement
// somewhere else. It also is not where the pool's own configuration says that nothing shall be.
func ask(ctx context.Context, db DB, sql string, args []any, each func(scan func(...any) error) error) error {
	if pool, ok := db.(*pgxpool.Pool); ok {
		c, err := pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer c.Release()
		db = c
	}
	conn := connOf(db)
	rows, err := db.Query(ctx, sql, append([]any{modeOf(conn)}, args...)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	var backend uint32
	for rows.Next() {
		scan := func(dest ...any) error { return rows.Scan(append([]any{&backend}, dest...)...) }
		if err := each(scan); err != nil {
			return err
		}
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		return err
	}
	learn(conn, backend)
	return nil
}

// one is ask for an answer of one row.
func one(ctx context.Context, db DB, sql string, args []any, dest ...any) error {
	found := pgx.ErrNoRows
	err := ask(ctx, db, sql, args, func(scan func(...any) error) error {
		found = nil
		return scan(dest...)
	})
	if err != nil {
		return err
	}
	return found
}

// modeKey is where a connection remembers how it is asked.
const modeKey = "github.com/fencedlock/fencedlock/fence: mode"

// modeOf is how a connection is asked that may be nil, or not be known yet: the server says which types the parameters have,
// and nothing is prepared by name.
func modeOf(conn *pgx.Conn) pgx.QueryExecMode {
	if conn == nil {
		return pgx.QueryExecModeCacheDescribe
	}
	if mode, ok := conn.PgConn().CustomData()[modeKey].(pgx.QueryExecMode); ok {
		return mode
	}
	if conn.Config().DescriptionCacheCapacity <= 0 {
		return pgx.QueryExecModeDescribeExec
	}
	return pgx.QueryExecModeCacheDescribe
}

func learn(conn *pgx.Conn, backend uint32) {
	if conn == nil || conn.IsClosed() {
		return
	}
	known := conn.PgConn().CustomData()
	if known[modeKey] != nil {
		return
	}
	mode := modeOf(conn)
	c := conn.Config()
	if backend == conn.PgConn().PID() && c.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement && c.StatementCacheCapacity > 0 {
		mode = pgx.QueryExecModeCacheStatement
	}
	known[modeKey] = mode
}

// codeOf is the SQLSTATE of an error of PostgreSQL, whichever driver it came through.
func codeOf(err error) string {
	var pg interface{ SQLState() string }
	if errors.As(err, &pg) {
		return pg.SQLState()
	}
	return ""
}

// alone tells that a statement is a transaction of its own, which can be sent again.
func alone(db DB) bool {
	switch x := db.(type) {
	case *pgxpool.Pool:
		return true
	case *pgx.Conn:
		return x.PgConn().TxStatus() == 'I'
	case sqlDB:
		return x.alone()
	}
	return false
}
