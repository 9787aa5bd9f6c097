// Package underfence runs what has its effect outside of PostgreSQL, a handler of requests or calls, under a fence in it.
package underfence

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
)

// Run raises the fence of a resource for good, and then runs f while a transaction holds it. It blocks as fence.Tx does; to let go of
// the fence it waits for the database for 5 s at most.
//
// ran says that f has run. If it has not, err says why. If it has, err is f's own, and lost says that the fence may have been let go of
// before f had ended.
func Run(ctx context.Context, db fence.Beginner, g fence.Grant, resource string, opts []fence.Option, f func() error) (ran bool, err, lost error) {
	// A stricter level would refuse, with 40001, who has only waited.
	opts = append([]fence.Option{fence.Isolation(pgx.ReadCommitted)}, opts...)
	// The effect of f is outside of any transaction, so the fence must not go back with one when f fails.
	if err := fence.Tx(ctx, db, g, resource, func(pgx.Tx) error { return nil }, opts...); err != nil {
		return false, err, nil
	}
	var failed error
	err = fence.Tx(ctx, db, g, resource, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, patient); err != nil {
			return err
		}
		if ran, failed = true, f(); failed != nil {
			return failed
		}
		return letGo(ctx, tx)
	}, opts...)
	switch {
	case !ran:
		return false, err, nil
	case failed != nil, errors.Is(err, errLetGo):
		return true, failed, nil
	}
	return true, nil, err
}

// letGoTime bounds how long an answer waits for a database that has gone silent.
const letGoTime = 5 * time.Second

// errLetGo ends the transaction of an f that was under the fence to its end.
var errLetGo = errors.New("the fence was let go of")

// letGo ends a transaction itself: fence.Tx would wait for the database for as long as ctx lasts, and spend the connection where a
// client has gone.
func letGo(ctx context.Context, tx pgx.Tx) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), letGoTime)
	defer cancel()
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	return errLetGo
}

// patient keeps the server from ending the transaction of an f that takes its time, where it is set to.
const patient = `SELECT pg_catalog.set_config(s, '0', true)
	FROM pg_catalog.unnest(ARRAY['idle_in_transaction_session_timeout', 'transaction_timeout']) AS s
	WHERE pg_catalog.current_setting(s, true) <> '0'`
