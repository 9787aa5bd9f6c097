// Package primary connects to the primary where a configuration names several hosts and does not say which of them it wants. By itself
// pgx takes the first that answers, each time anew: a standby in front would be asked for ever.
package primary

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrStandby is why a host was passed over.
var ErrStandby = errors.New("the server is a standby")

// Connect is pgx.ConnectConfig, but for the primary if there is one among several hosts; else for any of them, and what the caller
// makes of a standby is as with a single host.
func Connect(ctx context.Context, cc *pgx.ConnConfig) (*pgx.Conn, error) {
	sought := cc.Copy()
	Seek(&sought.Config)
	conn, err := pgx.ConnectConfig(ctx, sought)
	if errors.Is(err, ErrStandby) && ctx.Err() == nil {
		return pgx.ConnectConfig(ctx, cc)
	}
	return conn, err
}

// Seek lets a configuration of several hosts pass over standbys, unless it has a choice of its own (target_session_attrs).
func Seek(cc *pgconn.Config) {
	if cc.ValidateConnect != nil {
		return
	}
	for _, f := range cc.Fallbacks { // those of one host differ in TLS
		if f.Host != cc.Host || f.Port != cc.Port {
			cc.ValidateConnect = isPrimary
			return
		}
	}
}

func isPrimary(ctx context.Context, conn *pgconn.PgConn) error {
	results, err := conn.Exec(ctx, "SELECT pg_catalog.pg_is_in_recovery()").ReadAll()
	switch {
	case err != nil:
		return err
	case len(results) != 1 || len(results[0].Rows) != 1 || string(results[0].Rows[0][0]) != "f":
		return ErrStandby
	}
	return nil
}
