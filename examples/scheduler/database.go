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
	"github.com/fencedlock/fencedlock/migrations"
)

// A database is the play's own, on a server that is taken away afterwards, unless it was there before.
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
	db := &database{server: server, name: fmt.Sprintf("scheduler_%d", os.Getpid())}
	db.url = server.URL(db.name)
	if err := db.install(ctx); err != nil {
		return nil, errors.Join(err, db.close())
	}
	return db, nil
}

func (db *database) install(ctx context.Context) (err error) {
	if err := db.outside(ctx, `CREATE DATABASE `+db.name); err != nil {
		return err
	}
	if db.pool, err = pgxpool.New(ctx, db.url); err != nil {
		return err
	}
	// SingleNode says that this server has no standby that could take over.
	if err := migrations.Up(ctx, db.pool, migrations.SingleNode()); err != nil {
		return err
	}
	_, err = db.pool.Exec(ctx, `CREATE TABLE runs (tick bigint, replica text, token bigint)`)
	return err
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

// A tick is what has become of one.
type tick struct {
	tick     int64
	runs     int
	replicas string // who has run it
}

// count counts the runs of each tick, from the first that ran to the last.
func (db *database) count(ctx context.Context) ([]tick, error) {
	rows, err := db.pool.Query(ctx, `
		SELECT tick, count(replica), coalesce(string_agg(replica, ', ' ORDER BY token, replica), '')
		FROM (SELECT generate_series(min(tick), max(tick)) AS tick FROM runs) AS ticks LEFT JOIN runs USING (tick)
		GROUP BY tick ORDER BY tick`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (t tick, err error) {
		return t, row.Scan(&t.tick, &t.runs, &t.replicas)
	})
}
