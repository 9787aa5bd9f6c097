package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/pglock"
	"github.com/fencedlock/fencedlock/pglock/migrateguard"
)

// The service of the first act has two migrations, and its next version, of the second act, has three.
var (
	//go:embed migrations/0001_*.sql migrations/0002_*.sql
	first embed.FS
	//go:embed migrations/*.sql
	second embed.FS
)

const leaseTTL = 3 * time.Second // short, to see it end soon; the default is 15 s

// start is what each replica does before it serves, word for word.
func start(ctx context.Context, name string, pool *pgxpool.Pool, files fs.FS) error {
	guard, err := newGuard(name, pool, files, func(e migrateguard.Event) { say("%v", e) })
	if err != nil {
		return err
	}
	return guard.Up(ctx)
}

func newGuard(name string, pool *pgxpool.Pool, files fs.FS, notify func(migrateguard.Event)) (*migrateguard.Guard, error) {
	src, err := iofs.New(files, "migrations")
	if err != nil {
		return nil, err
	}
	return migrateguard.New(pool, src, migrateguard.Config{
		Lease:  pglock.Config{Owner: name, TTL: leaseTTL},
		Notify: notify,
	})
}

// report says what became of it.
func report(err error) {
	switch {
	case err == nil:
		say("serves")
	case errors.Is(err, migrateguard.ErrDirty):
		say("DIRTY: does not start: %v", err)
	default:
		say("does not start: %v", err)
	}
}

// say tells the director what happens.
func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }
