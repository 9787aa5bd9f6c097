//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/migrations"
)

// withDatabase plays f with a database of its own, on a server that is taken away afterwards unless it was there before.
func withDatabase(ctx context.Context, f func(server, url string, pool *pgxpool.Pool) error) (err error) {
	server, err := pgtemp.Start(ctx, pgtemp.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	outside, err := pgxpool.New(ctx, server.URL("postgres"))
	if err != nil {
		return err
	}
	defer outside.Close()
	name := fmt.Sprintf("invoices_%d", os.Getpid())
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second) // a ^C has ended ctx
		defer cancel()
		_, dropping := outside.Exec(ctx, `DROP DATABASE IF EXISTS `+name+` WITH (FORCE)`)
		err = errors.Join(err, dropping)
	}()
	if _, err := outside.Exec(ctx, `CREATE DATABASE `+name); err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, server.URL(name))
	if err != nil {
		return err
	}
	defer pool.Close()
	// SingleNode says that this server has no standby that could take over.
	if err := migrations.Up(ctx, pool, migrations.SingleNode()); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, `CREATE TABLE payments (invoice int, amount int, payer text)`); err != nil {
		return err
	}
	return f(server.How(), server.URL(name), pool)
}
