package main

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// cirello replays the statements of cirello.io/pglock, which is not to be had as a module: serializable transactions that put the
// next number of a sequence into a row, unless another number is there; a lease has lapsed if the number is the same one TTL later.
// So a waiter sleeps for a TTL between two tries. Heartbeats change the number, the first of them at once.
var cirello = &System{
	Name: "replay of cirello.io/pglock", Note: "asks once per TTL, here 1 s (its default: 20 s); over pgx instead of lib/pq",
	On: onPostgres, TTL: time.Second, Poll: time.Second,
	Setup: func(ctx context.Context, url string) error {
		return execute(ctx, url, `
			CREATE TABLE locks (name varchar(255) PRIMARY KEY, record_version_number bigint, data bytea, owner varchar(255));
			CREATE SEQUENCE locks_rvn OWNED BY locks.record_version_number`)
	},
	Open: func(_ context.Context, url string, ttl time.Duration) (Client, error) {
		db, err := openSQL(url)
		return cirelloClient{db, ttl}, err
	},
}

type cirelloClient struct {
	db  *sql.DB
	ttl time.Duration
}

func (c cirelloClient) Close() error { return c.db.Close() }

// A cirelloLock is one attempt at a lock, and then the lock.
type cirelloLock struct {
	cirelloClient
	name    string
	version sql.NullInt64 // ours once it is held, and else the one that we saw last
	stop    context.CancelFunc
	beat    sync.WaitGroup
}

func (c cirelloClient) Acquire(ctx context.Context, name string) (func(context.Context) error, error) {
	l := &cirelloLock{cirelloClient: c, name: name}
	for {
		got := false
		err := l.again(ctx, func() (err error) { got, err = l.take(ctx); return err })
		switch {
		case err != nil:
			return nil, err
		case got:
			var life context.Context
			life, l.stop = context.WithCancel(context.Background())
			l.beat.Go(func() { l.keep(life) })
			return l.release, nil
		}
		if err := sleep(ctx, c.ttl); err != nil {
			return nil, err
		}
	}
}

func (l *cirelloLock) take(ctx context.Context) (got bool, err error) {
	var next int64
	if err := l.db.QueryRowContext(ctx, `SELECT nextval('locks_rvn')`).Scan(&next); err != nil {
		return false, err
	}
	var actual sql.NullInt64
	err = l.serializable(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO locks (name, record_version_number, data, owner) VALUES ($1, $2, $3, $4)
			ON CONFLICT (name) DO UPDATE SET record_version_number = $2, data = CASE WHEN $5 THEN $3 ELSE locks.data END, owner = $4
			WHERE locks.record_version_number IS NULL OR locks.record_version_number = $6`,
			l.name, next, []byte(nil), "bench", false, l.version); err != nil {
			return err
		}
		var data []byte
		var owner string
		err := tx.QueryRowContext(ctx, `SELECT record_version_number, data, owner FROM locks WHERE name = $1 FOR UPDATE`, l.name).
			Scan(&actual, &data, &owner)
		if err == nil && actual.Int64 != next {
			err = errRefused
		}
		return err
	})
	if err == nil || errors.Is(err, errRefused) {
		l.version = actual
	}
	if errors.Is(err, errRefused) {
		return false, nil
	}
	return err == nil, err
}

var errRefused = errors.New("another holds the lock")

// keep is the goroutine of the heartbeats; release joins it.
func (l *cirelloLock) keep(ctx context.Context) {
	for ctx.Err() == nil {
		if l.again(ctx, func() error { return l.renew(ctx) }) != nil {
			return
		}
		sleep(ctx, l.ttl/4) //nolint:errcheck // the loop looks at ctx
	}
}

func (l *cirelloLock) renew(ctx context.Context) error {
	var next int64
	if err := l.db.QueryRowContext(context.WithoutCancel(ctx), `SELECT nextval('locks_rvn')`).Scan(&next); err != nil {
		return err
	}
	err := l.serializable(ctx, func(ctx context.Context, tx *sql.Tx) error {
		return one(tx.ExecContext(ctx, `UPDATE locks SET record_version_number = $3 WHERE name = $1 AND record_version_number = $2`,
			l.name, l.version, next))
	})
	if err == nil {
		l.version.Int64 = next
	}
	return err
}

func (l *cirelloLock) release(ctx context.Context) error {
	l.stop()
	l.beat.Wait()
	return l.again(ctx, func() error {
		return l.serializable(ctx, func(ctx context.Context, tx *sql.Tx) error {
			if err := one(tx.ExecContext(ctx, `UPDATE locks SET record_version_number = NULL WHERE name = $1 AND record_version_number = $2`,
				l.name, l.version)); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, `DELETE FROM locks WHERE name = $1 AND record_version_number IS NULL`, l.name)
			return err
		})
	})
}

// serializable finishes what it has begun: with pgx, a ctx that ends meanwhile would cost the connection, or leave a commit in doubt.
func (c cirelloClient) serializable(ctx context.Context, f func(context.Context, *sql.Tx) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), roundLimit)
	defer cancel()
	tx, err := c.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable})
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // nothing after a commit
	if err := f(ctx, tx); err != nil {
		return err
	}
	return tx.Commit()
}

// again repeats what failed to serialize, after the time of a heartbeat.
func (c cirelloClient) again(ctx context.Context, f func() error) error {
	for {
		err := f()
		var refused *pgconn.PgError
		if !errors.As(err, &refused) || refused.Code != "40001" {
			return err
		}
		if err := sleep(ctx, c.ttl/4); err != nil {
			return err
		}
	}
}

func one(r sql.Result, err error) error {
	if err != nil {
		return err
	}
	if n, err := r.RowsAffected(); err != nil || n != 1 {
		return errors.Join(errors.New("the lock was lost"), err)
	}
	return nil
}
