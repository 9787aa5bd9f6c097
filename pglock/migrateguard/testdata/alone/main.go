// Alone is what a service does that calls golang-migrate when it starts, and nothing else. It is a module of its own, since
// golang-migrate's driver needs more than the library does.
//
//	alone postgres://… folder
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/golang-migrate/migrate/v4"
	_ "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	_ "github.com/golang-migrate/migrate/v4/source/file"
)

func main() {
	m, err := migrate.New("file://"+os.Args[2], "pgx5"+strings.TrimPrefix(os.Args[1], "postgres"))
	if err == nil {
		err = m.Up()
	}
	if err != nil && !errors.Is(err, migrate.ErrNoChange) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
