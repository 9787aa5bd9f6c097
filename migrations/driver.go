package migrations

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A driver lets golang-migrate work inside one transaction that already has our lock. Its own driver for pgx takes a
// session lock, which a transaction pooler leaves behind on some server connection, and marks a version dirty in
// transactions of their own, which a killed process leaves behind for a person to repair.
type driver struct {
	ctx     context.Context // golang-migrate's interface has no room for it
	tx      pgx.Tx
	version int // where the schema is, or is going to while Run runs
}

var _ database.Driver = (*driver)(nil)

// move takes a schema to which from files are applied to where to of them are. One step at a time, because after a failure
// golang-migrate leaves a goroutine behind for each file that it has read ahead.
func move(ctx context.Context, tx pgx.Tx, files []file, schema string, from, to int) error {
	d := &driver{ctx: ctx, tx: tx, version: versionAt(files, from)}
	fsys, err := renderedFS(files, schema)
	if err != nil {
		return err
	}
	src, err := iofs.New(fsys, ".")
	if err != nil {
		return err
	}
	m, err := migrate.NewWithInstance("iofs", src, "pgx", d)
	if err != nil {
		return err
	}
	for ; err == nil && from < to; from++ {
		if err = m.Steps(1); err != nil {
			err = fmt.Errorf("%s.up.sql: %w", files[from].name, err)
		}
	}
	for ; err == nil && from > to; from-- {
		if err = m.Steps(-1); err != nil {
			err = fmt.Errorf("%s.down.sql: %w", files[from-1].name, err)
		}
	}
	serr, derr := m.Close()
	return errors.Join(err, serr, derr)
}

// versionAt is the version of a schema to which n files are applied.
func versionAt(files []file, n int) int {
	if n == 0 {
		return database.NilVersion
	}
	return int(files[n-1].version)
}

// Run sends one file. It records itself (see FS).
func (d *driver) Run(r io.Reader) error {
	sql, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if _, err := d.tx.Exec(d.ctx, string(sql)); err != nil {
		return fileError(string(sql), err)
	}
	return nil
}

// fileError adds what a person needs and PgError's message leaves out: the line of the file, the detail and the hint.
func fileError(sql string, err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	if pos := []rune(sql); pg.Position > 0 && int(pg.Position) <= len(pos) {
		err = fmt.Errorf("line %d: %w", 1+strings.Count(string(pos[:pg.Position]), "\n"), err)
	}
	if pg.Code == "55006" { // object_in_use: 0001_leases.down.sql says who
		err = fmt.Errorf("%w: %w", ErrInUse, err)
	}
	for _, more := range []string{pg.Detail, pg.Hint} {
		if more != "" {
			err = fmt.Errorf("%w. %s", err, more)
		}
	}
	return err
}

// SetVersion is called before and after each Run. Nothing is written: the file and its record commit together.
func (d *driver) SetVersion(version int, _ bool) error {
	d.version = version
	return nil
}

// Version is never dirty.
func (d *driver) Version() (int, bool, error) { return d.version, false, nil }

// Lock and Unlock do nothing, since the transaction has our lock.
func (d *driver) Lock() error { return nil }

// Unlock does nothing, see Lock.
func (d *driver) Unlock() error { return nil }

// Close does nothing: whoever opened the connection closes it.
func (d *driver) Close() error { return nil }

// Open is for drivers that are registered by name.
func (d *driver) Open(string) (database.Driver, error) {
	return nil, errors.New("migrations: not a registered driver")
}

// Drop would take away what is not ours.
func (d *driver) Drop() error { return errors.New("migrations: use Down") }
