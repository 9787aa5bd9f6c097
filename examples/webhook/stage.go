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
	"github.com/fencedlock/fencedlock/pglock"
	"github.com/fencedlock/fencedlock/pglock/once"
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
	name := fmt.Sprintf("webhook_%d", os.Getpid())
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
	_, err = pool.Exec(ctx, `
		CREATE TABLE payments (event text PRIMARY KEY);
		CREATE TABLE invoices (id bigint PRIMARY KEY, credit int, status text, fencing_token bigint NOT NULL DEFAULT 0);
		INSERT INTO invoices VALUES (42, 0, 'open', 0)`)
	if err != nil {
		return err
	}
	return f(server.How(), pool)
}

// withReplicas plays f with the addresses of three replicas of the shop. The first is suspended now and then.
func withReplicas(ctx context.Context, s *story, onlyOnce, fenced bool, f func(urls []string) error) (err error) {
	defer web.CloseIdleConnections()
	var urls []string
	for _, name := range []string{"replica A", "replica B", "replica C"} {
		locks, err := pglock.New(s.pool, pglock.Config{Owner: name})
		if err != nil {
			return err
		}
		defer closeLocks(locks)
		runs, err := once.New(locks, s.pool)
		if err != nil {
			return err
		}
		url, stop, err := serve(&shop{
			name: name, pool: s.pool, locks: locks, runs: runs, bank: s.bank, mail: s.mail,
			once: onlyOnce, fenced: fenced, sluggish: name == "replica A",
		})
		if err != nil {
			return err
		}
		defer stop()
		urls = append(urls, url)
	}
	return f(urls)
}

// serve runs a handler on an address of its own until it is stopped.
func serve(h http.Handler) (url string, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintln(os.Stderr, "webhook:", err)
		}
	}()
	stop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "webhook:", err)
		}
		<-ended
	}
	return "http://" + listener.Addr().String(), stop, nil
}

// closeLocks waits a second at most for the database to confirm; what it does not confirm ends with the TTL.
func closeLocks(locks *pglock.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := locks.Close(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "webhook:", err)
	}
}
