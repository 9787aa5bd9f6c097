//go:build unix

package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/pglock"
)

const leaseTTL = 2 * time.Second // short, to see it lapse soon; the default is 15 s

// work is what both workers do, word for word: take the lock, see what is due, and pay it.
func work(ctx context.Context, name string, pool *pgxpool.Pool, prepare func() error, fenced bool) error {
	locks, err := pglock.New(pool, pglock.Config{Owner: name, TTL: leaseTTL})
	if err != nil {
		return err
	}
	say(`wants the lock "payments"`)
	err = locks.Do(ctx, "payments", func(ctx context.Context, lease *pglock.Lease) error {
		due1, err1 := due(ctx, pool, 1)
		due2, err2 := due(ctx, pool, 2)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		say("holds the lock, token %d, and sees what is due: %d for invoice 1, %d for invoice 2", lease.Token(), due1, due2)
		if err := prepare(); err != nil { // here worker A is frozen
			return err
		}

		// A payment is not broken off halfway, so it does not end with the lease. To look at the lease once more would not help:
		// the process may be frozen after that, too.
		ctx = context.WithoutCancel(ctx)

		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			return pay(ctx, tx, 1, due1, name)
		})
		if err != nil {
			return err
		}
		say("has paid %d for invoice 1, without the fence", due1)

		if !fenced {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return pay(ctx, tx, 2, due2, name) })
		}
		err = fence.Tx(ctx, pool, lease.Grant(), "invoice 2", func(tx pgx.Tx) error {
			return pay(ctx, tx, 2, due2, name)
		})
		if err != nil {
			return err
		}
		say("has paid %d for invoice 2, with the fence", due2)
		return nil
	})
	return errors.Join(err, locks.Close(ctx))
}

// due is what is left to be paid. An invoice may be paid in parts: no unique index tells a second payment from the next part.
func due(ctx context.Context, pool *pgxpool.Pool, invoice int) (amount int, err error) {
	err = pool.QueryRow(ctx, `SELECT $2 - coalesce(sum(amount), 0) FROM payments WHERE invoice = $1`, invoice, total).Scan(&amount)
	return amount, err
}

func pay(ctx context.Context, tx pgx.Tx, invoice, amount int, name string) error {
	_, err := tx.Exec(ctx, `INSERT INTO payments (invoice, amount, payer) VALUES ($1, $2, $3)`, invoice, amount, name)
	return err
}
