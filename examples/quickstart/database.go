//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/migrations"
	"github.com/fencedlock/fencedlock/pglock"
)

// A database is the play's own, on a server that is taken away afterwards, unless it was there before.
type database struct {
	server *pgtemp.Server
	name   string
	url    string
	pool   *pgxpool.Pool
	locks  *pglock.Client // of the director, who only looks
}

// newDatabase starts a server and puts two things on it: the schema of the locks and a table to protect.
func newDatabase(ctx context.Context) (*database, error) {
	server, err := pgtemp.Start(ctx, pgtemp.Options{})
	if err != nil {
		return nil, err
	}
	db := &database{server: server, name: fmt.Sprintf("quickstart_%d", os.Getpid())}
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
	// The locks live in a schema of their own. SingleNode says that this server has no standby that could take over.
	if err := migrations.Up(ctx, db.pool, migrations.SingleNode()); err != nil {
		return err
	}
	// A table to protect has one column for the library.
	_, err = db.pool.Exec(ctx, `
		CREATE TABLE invoices (id bigint PRIMARY KEY, total int, writer text, fencing_token bigint NOT NULL DEFAULT 0);
		INSERT INTO invoices (id, total, writer) VALUES (42, 0, 'nobody')`)
	if err != nil {
		return err
	}
	db.locks, err = pglock.New(db.pool, pglock.Config{Owner: "director"})
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
	var errs []error
	if db.locks != nil {
		errs = append(errs, db.locks.Close(ctx))
	}
	if db.pool != nil {
		db.pool.Close()
	}
	errs = append(errs, db.outside(ctx, `DROP DATABASE IF EXISTS `+db.name+` WITH (FORCE)`), db.server.Stop())
	return errors.Join(errs...)
}

// An invoice is the row that the workers write.
type invoice struct {
	total  int
	writer string
	token  fence.Token
}

func (i invoice) String() string {
	return fmt.Sprintf("total %d by %s, token %d", i.total, i.writer, i.token)
}

func (db *database) invoice(ctx context.Context) (i invoice, err error) {
	err = db.pool.QueryRow(ctx, `SELECT total, writer, fencing_token FROM invoices WHERE id = 42`).Scan(&i.total, &i.writer, &i.token)
	return i, err
}
