package migrateguard_test

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"log/slog"
	"testing/fstest"

	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/pglock/migrateguard"
)

var migrationFiles embed.FS // with //go:embed migrations/*.sql above it

// What every replica of a service does when it starts.
func ExampleGuard_Up() {
	start := func(ctx context.Context, pool *pgxpool.Pool) error {
		src, err := iofs.New(migrationFiles, "migrations")
		if err != nil {
			return err
		}
		guard, err := migrateguard.New(pool, src, migrateguard.Config{Logger: slog.Default()})
		if err != nil {
			return err
		}
		err = guard.Up(ctx)
		if errors.Is(err, migrateguard.ErrMigrated) {
			slog.Warn("going on", "error", err) // all is migrated, and the lock ends by itself
			return nil
		}
		return err
	}
	_ = start
}

// A nonsense of a configuration is refused before anything is sent.
func ExampleOpen() {
	src, err := iofs.New(fstest.MapFS{"1_books.up.sql": {Data: []byte("CREATE TABLE books (title text)")}}, ".")
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = migrateguard.Open("postgres://app@db.example/app", src, migrateguard.Config{Wait: -1})
	fmt.Println(err)
	// Output: migrateguard: invalid argument: Config.Wait -1ns is negative
}
