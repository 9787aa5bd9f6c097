package migrations

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/deadline"
)

// Up brings the schema to this version of the library and returns nil if it is there, or newer. What is up to date is only
// read: that needs no right to create anything, and works on a standby.
//
// It uses one connection of its own, made from the pool's configuration and closed at the end, and blocks while another
// process migrates the same schema or uses a table that must change, until ctx ends. After an error, and after a process
// was killed at any point, either all files were applied or none; calling Up again is always safe, also when the
// connection broke at the commit and nobody knows.
//
// Errors: [ErrInvalid], [ErrPrivilege], [ErrReadOnly], [ErrChanged], [ErrUnrecorded], [ErrSettings], ctx's cause, or whatever
// PostgreSQL says. Safe for concurrent use, by any number of processes.
func Up(ctx context.Context, pool *pgxpool.Pool, opts ...Option) error {
	m, err := open(ctx, pool, opts)
	if err != nil {
		return named(ctx, "up", err)
	}
	defer m.close(ctx)
	return named(ctx, "up", m.change(ctx, m.isUp, m.up))
}

// Down takes away everything that [Up] has made, with all locks, fences and records, and the schema too if Up has made it
// and nothing else is in it. It returns nil if nothing is there. Tokens drawn after a later Up are greater than all before,
// unless those were ahead of the clock (raise_token_floor, or a clock that was set back): then raise the floor again after Up.
//
// It refuses while locks are held, and while new grants are held back after a restart or failover. It blocks like Up, on transactions that use the tables as well. After an error nothing
// was changed.
//
// Errors: [ErrInvalid], [ErrInUse], [ErrPrivilege], [ErrReadOnly], [ErrChanged] and [ErrUnrecorded] (its own files must be
// those that were applied), ctx's cause, or whatever PostgreSQL says. Safe for concurrent use.
func Down(ctx context.Context, pool *pgxpool.Pool, opts ...Option) error {
	m, err := open(ctx, pool, opts)
	if err != nil {
		return named(ctx, "down", err)
	}
	defer m.close(ctx)
	return named(ctx, "down", m.change(ctx, m.isDown, m.down))
}

// A Status is what [Version] found.
type Status struct {
	Version uint // the last file that was applied
	Latest  uint // the last file that this version of the library has; smaller than Version if a newer one was here
}

// Version says which files are applied, for who may read the records: the owner, lockers and auditors. It waits for
// nothing but the server.
//
// Errors: [ErrInvalid], [ErrNotInstalled], [ErrPrivilege], [ErrChanged] and [ErrUnrecorded] (together with what is recorded),
// ctx's cause, or whatever PostgreSQL says. Safe for concurrent use.
func Version(ctx context.Context, pool *pgxpool.Pool, opts ...Option) (Status, error) {
	m, err := open(ctx, pool, opts)
	if err != nil {
		return Status{}, named(ctx, "version", err)
	}
	defer m.close(ctx)
	st := Status{Latest: uint(m.files[len(m.files)-1].version)} //nolint:gosec // from our own file names
	err = inTx(ctx, m.conn, pgx.ReadOnly, func(tx pgx.Tx) error {
		s, err := readState(ctx, tx, m.schema)
		switch {
		case err != nil:
			return err
		case !s.table:
			return fmt.Errorf("%w in schema %q of database %q: call migrations.Up", ErrNotInstalled, m.schema, s.database)
		case len(s.records) > 0:
			st.Version = uint(s.records[len(s.records)-1].version) //nolint:gosec // see above
		}
		_, err = s.applied(m.files)
		return err
	})
	return st, named(ctx, "version", err)
}

// named says which call failed, and why the ctx ended where that is what it was.
func named(ctx context.Context, call string, err error) error {
	if err == nil {
		return nil
	}
	switch cause := deadline.Cause(ctx); {
	case cause != nil && !errors.Is(err, cause):
		return fmt.Errorf("migrations: %s: %w: %w", call, cause, err)
	}
	return fmt.Errorf("migrations: %s: %w", call, err)
}

// A migrator is one call: its connection, its options and the files.
type migrator struct {
	config
	files []file
	conn  *pgx.Conn
}

func open(ctx context.Context, pool *pgxpool.Pool, opts []Option) (*migrator, error) {
	if pool == nil {
		return nil, fmt.Errorf("%w: the pool is nil", ErrInvalid)
	}
	c, err := resolve(opts)
	if err != nil {
		return nil, err
	}
	files, err := readFiles(embedded)
	if err != nil {
		return nil, err
	}
	conn, err := connect(ctx, pool)
	if err != nil {
		return nil, err
	}
	return &migrator{config: c, files: files, conn: conn}, nil
}

func (m *migrator) close(ctx context.Context) { hangUp(ctx, m.conn) }

// change reads without the lock whether there is anything to do, takes the lock, reads again (what was read before is old
// by now), and does it. Whoever waited for another finds that it was done.
func (m *migrator) change(ctx context.Context, done func(context.Context, pgx.Tx, state) (bool, error),
	do func(context.Context, pgx.Tx, state) error,
) error {
	var reason error // for the last wait
	waited := func(err error) error {
		return fmt.Errorf("waiting to change schema %q (%w): %w", m.schema, reason, err)
	}
	for try := 0; ; try++ {
		over := false
		look := func(tx pgx.Tx) (s state, err error) {
			if s, err = readState(ctx, tx, m.schema); err == nil {
				over, err = done(ctx, tx, s)
			}
			return s, err
		}
		err := inTx(ctx, m.conn, pgx.ReadOnly, func(tx pgx.Tx) error { _, err := look(tx); return err })
		switch {
		case err != nil && ctx.Err() != nil && reason != nil:
			return waited(err)
		case err != nil || over:
			return err
		}
		err = inTx(ctx, m.conn, pgx.ReadWrite, func(tx pgx.Tx) error {
			if err := tryLock(ctx, tx, m.schema); err != nil {
				return err
			}
			s, err := look(tx)
			if err != nil || over {
				return err
			}
			return do(ctx, tx, s)
		})
		switch {
		case busy(err):
			reason = err
		case err != nil && ctx.Err() != nil && reason != nil:
			return waited(err)
		default:
			return err
		}
		if cause := pause(ctx, try); cause != nil {
			return waited(cause)
		}
	}
}

func (m *migrator) isUp(ctx context.Context, tx pgx.Tx, s state) (bool, error) {
	n, err := s.applied(m.files)
	if err != nil {
		return false, err
	}
	if n > 0 {
		if err := m.checkSettings(ctx, tx, s); err != nil {
			return false, err
		}
	}
	if n == len(m.files) {
		return true, nil
	}
	return false, s.cannotInstall()
}

func (m *migrator) up(ctx context.Context, tx pgx.Tx, s state) error {
	n, err := s.applied(m.files)
	if err != nil {
		return err
	}
	if err := move(ctx, tx, m.files, m.schema, n, len(m.files)); err != nil {
		return err
	}
	if n > 0 { // the file that made the settings readable may have come just now
		if s, err = readState(ctx, tx, m.schema); err != nil {
			return err
		}
		return m.checkSettings(ctx, tx, s)
	}
	if m.cap == 0 && !m.single {
		return nil
	}
	const set = "UPDATE pglock.guard SET cap_us = coalesce(nullif($1::bigint, 0), cap_us), single_node = $2"
	_, err = tx.Exec(ctx, render(set, m.schema), simple, m.cap.Microseconds(), m.single)
	return err
}

func (m *migrator) isDown(_ context.Context, _ pgx.Tx, s state) (bool, error) {
	if !s.table {
		return true, nil
	}
	if _, err := s.applied(m.files); err != nil {
		return false, err
	}
	if last := s.records[len(s.records)-1].version; last > m.files[len(m.files)-1].version {
		return false, fmt.Errorf("schema %q is at version %d, and this version of the library ends at %d: run Down with the newer one",
			s.schema, last, m.files[len(m.files)-1].version)
	}
	return false, s.cannotRemove()
}

func (m *migrator) down(ctx context.Context, tx pgx.Tx, s state) error {
	return move(ctx, tx, m.files, m.schema, len(s.records), 0) // isDown: they are the first of ours
}
