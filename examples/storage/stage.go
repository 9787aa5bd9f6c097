package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/migrations"
)

// withDatabase plays f with a database of its own, on a server that is taken away afterwards unless it was there before.
func withDatabase(ctx context.Context, f func(server string, pool *pgxpool.Pool) error) (err error) {
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
	name := fmt.Sprintf("storage_%d", os.Getpid())
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
	return f(server.How(), pool)
}

// withService plays f with the service, which guards a folder that is removed afterwards.
func withService(pool *pgxpool.Pool, guarded bool, f func(url string) error) (err error) {
	path, err := os.MkdirTemp("", "storage")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(path)) }()
	folder, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, folder.Close()) }()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	service := &http.Server{Handler: newService(pool, folder, guarded), ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- service.Serve(listener) }()
	defer func() {
		web.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		err = errors.Join(err, service.Shutdown(ctx))
		if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
	}()
	return f("http://" + listener.Addr().String())
}
