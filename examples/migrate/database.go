package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
)

// A database is the play's own, on a server that is taken away afterwards, unless it was there before. It is empty.
type database struct {
	server *pgtemp.Server
	name   string
	url    string
	pool   *pgxpool.Pool
}

func newDatabase(ctx context.Context) (*database, error) {
	server, err := pgtemp.Start(ctx, pgtemp.Options{})
	if err != nil {
		return nil, err
	}
	db := &database{server: server, name: fmt.Sprintf("migrate_%d", os.Getpid())}
	db.url = server.URL(db.name)
	if err = db.outside(ctx, `CREATE DATABASE `+db.name); err == nil {
		db.pool, err = pgxpool.New(ctx, db.url)
	}
	if err != nil {
		return nil, errors.Join(err, db.close())
	}
	return db, nil
}

// outside runs a statement that makes or drops the database.
func (db *database) outside(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, db.server.URL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

// close leaves nothing behind. It does not take the play's context, which a ^C has ended.
func (db *database) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if db.pool != nil {
		db.pool.Close()
	}
	return errors.Join(db.outside(ctx, `DROP DATABASE IF EXISTS `+db.name+` WITH (FORCE)`), db.server.Stop())
}

// read begins a report: a transaction that sees what there is now, and keeps seeing it.
func (db *database) read(ctx context.Context) (pgx.Tx, error) {
	tx, err := db.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, err
	}
	_, err = tx.Exec(ctx, `SELECT 1`) // takes the snapshot
	return tx, err
}

// untilIndexWaits waits until an index is being built, and waits for the report.
func (db *database) untilIndexWaits(ctx context.Context) error {
	for waits := false; !waits; {
		err := db.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_progress_create_index
			WHERE datname = current_database() AND phase = 'waiting for old snapshots')`).Scan(&waits)
		if err != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond) // before the next look: a phase sends no event
	}
	return nil
}

// look says at which version the database is, and which indexes of books there are.
func (db *database) look(ctx context.Context) (text string, err error) {
	err = db.pool.QueryRow(ctx, `SELECT format('version %s%s, indexes: %s', version, CASE WHEN dirty THEN ', dirty' END,
		(SELECT string_agg(indexrelid::regclass || CASE WHEN indisvalid THEN '' ELSE ' (invalid)' END, ', ' ORDER BY indexrelid)
		   FROM pg_index WHERE indrelid = 'books'::regclass)) FROM schema_migrations`).Scan(&text)
	return text, err
}
