package migrateguard

import (
	"fmt"
	"io"
	"math"
	"os"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/source"
)

// A Migration is one file of the source, in one direction.
type Migration struct {
	Version uint   // of the file
	Name    string // of the file, as the source has it; "" if this direction has none, and only the version moves
	Down    bool
	Target  int // the version of the database after it; -1 for nothing
}

func (m Migration) String() string {
	s := fmt.Sprint(m.Version)
	if m.Name != "" {
		s += "_" + m.Name
	}
	if m.Down {
		s += " (down)"
	}
	return s
}

// A Plan is where a database is, and what Up would run.
type Plan struct {
	Version    int         // -1 for nothing
	Dirty      bool        // a migration to Version is under way just now, or has failed: then Migrations is empty
	Migrations []Migration // in their order
}

// A route lists the migrations to run from a version. What is wrong with it is found before the first of them runs.
type route func(src source.Driver, from int) ([]Migration, error)

// up goes up by n migrations, or to the end for a negative n.
func up(src source.Driver, from, n int) (list []Migration, err error) {
	for n < 0 || len(list) < n {
		var next uint
		if from < 0 {
			if next, err = src.First(); missing(err) { // most often its files are elsewhere, or named otherwise
				return nil, fmt.Errorf("%w: the source has no migrations: their files are named as 1_name.up.sql (%w)", ErrInvalid, err)
			}
		} else {
			next, err = src.Next(uint(from))
		}
		if missing(err) {
			break
		}
		if err != nil {
			return nil, err
		}
		if next > math.MaxInt { // golang-migrate would take it for a negative one
			return nil, fmt.Errorf("%w: the source has version %d, and the greatest that can be recorded is %d", ErrInvalid, next, math.MaxInt)
		}
		m := Migration{Version: next, Target: int(next)}
		if m.Name, err = name(src.ReadUp(next)); err != nil {
			return nil, err
		}
		list = append(list, m)
		from = m.Target
	}
	return list, short(n, len(list))
}

// down goes down by n migrations, or to nothing for a negative n.
func down(src source.Driver, from, n int) (list []Migration, err error) {
	for from >= 0 && (n < 0 || len(list) < n) {
		m := Migration{Version: uint(from), Down: true, Target: -1}
		prev, err := src.Prev(m.Version)
		switch {
		case err == nil:
			m.Target = int(prev) //nolint:gosec // as golang-migrate does
		case !missing(err):
			return nil, err
		}
		if m.Name, err = name(src.ReadDown(m.Version)); err != nil {
			return nil, err
		}
		list = append(list, m)
		from = m.Target
	}
	return list, short(n, len(list))
}

// to goes to a version, in either direction.
func to(src source.Driver, from, target int) ([]Migration, error) {
	move := up
	if target < from {
		move = down
	}
	list, err := move(src, from, -1)
	for i, m := range list {
		if m.Target == target {
			return list[:i+1], err
		}
	}
	if err == nil && from != target {
		err = unknown(src, target)
	}
	if from == target {
		list = nil
	}
	return list, err
}

// short refuses a number of steps that there are not.
func short(want, have int) error {
	if want <= have {
		return nil
	}
	return fmt.Errorf("migrateguard: migrations asked for: %d, there: %d; none was run: %w", want, have, migrate.ErrShortLimit{Short: uint(want - have)}) //nolint:gosec // positive
}

// known checks that the source has the version that the database is at.
func known(src source.Driver, version int) error {
	if version < 0 {
		return nil
	}
	for _, read := range []func(uint) (io.ReadCloser, string, error){src.ReadUp, src.ReadDown} {
		r, _, err := read(uint(version))
		switch {
		case err == nil:
			return r.Close()
		case !missing(err):
			return err
		}
	}
	return unknown(src, version)
}

func unknown(src source.Driver, version int) error {
	ends := ""
	if list, err := up(src, -1, -1); err == nil && len(list) > 0 {
		ends = fmt.Sprintf(" (it ends at %d)", list[len(list)-1].Version)
	}
	return fmt.Errorf("%w: version %d%s: use the program that has it (%w)", ErrUnknownVersion, version, ends, os.ErrNotExist)
}

// name is the name of a file; "" if there is none.
func name(r io.ReadCloser, name string, err error) (string, error) {
	switch {
	case missing(err):
		return "", nil
	case err != nil:
		return "", err
	}
	return name, r.Close()
}
