package migrateguard

import (
	"context"
	"fmt"
	"math"

	"github.com/golang-migrate/migrate/v4/source"
)

// Up runs all migrations that have not run yet. It returns nil when the database is at the last one, also where there was
// nothing to do (golang-migrate's ErrNoChange).
//
// It waits for others who migrate the same, as long as they are at it: until ctx ends, or for Config.Wait. When ctx ends during a
// migration, that is cancelled, and its version is dirty; between two, none begins any more. So give it a ctx that does not end
// with the first signal, or a time that is enough.
//
// After an error, migrations that were done stay done and recorded. The error matches one of: ErrBusy and ErrUnknownVersion
// (nothing was done), ErrDirty (of this call, or found), ErrLost, ErrMigrated (all was done), migrations.ErrPrivilege (the lease's
// schema is missing, and this role may not install it; or rights on the version table are), pglock.ErrReadOnly (a standby),
// advisory.ErrPooler (Config.Session), the cause of ctx; or it is what the source or PostgreSQL says.
func (g *Guard) Up(ctx context.Context) error { return g.migrate(ctx, "up", -1) }

// Down takes all migrations back, the last one first. It waits and fails as Up does, and returns nil where nothing is left.
func (g *Guard) Down(ctx context.Context) error {
	return g.change(ctx, job{name: "down", route: func(src source.Driver, from int) ([]Migration, error) { return down(src, from, -1) }})
}

// Steps runs the next n migrations, or takes the last -n back. If there are fewer, none is run, and the error is
// golang-migrate's ErrShortLimit; 0 is ErrInvalid. Otherwise it waits and fails as Up does.
//
// Every process that calls it runs n migrations, each after the others: it is for people, not for the start of a service.
func (g *Guard) Steps(ctx context.Context, n int) error {
	switch {
	case n == 0 || n == math.MinInt:
		return fmt.Errorf("%w: Steps(%d)", ErrInvalid, n)
	case n > 0:
		return g.migrate(ctx, "steps", n)
	}
	return g.change(ctx, job{name: "steps", route: func(src source.Driver, from int) ([]Migration, error) { return down(src, from, -n) }})
}

func (g *Guard) migrate(ctx context.Context, name string, n int) error {
	return g.change(ctx, job{name: name, route: func(src source.Driver, from int) ([]Migration, error) { return up(src, from, n) }})
}

// Migrate goes up or down to a version of the source; another is ErrUnknownVersion. It returns nil when the database is there,
// and waits and fails as Up does.
func (g *Guard) Migrate(ctx context.Context, version uint) error {
	if version > math.MaxInt {
		return fmt.Errorf("%w: Migrate(%d)", ErrInvalid, version)
	}
	return g.change(ctx, job{name: "migrate", route: func(src source.Driver, from int) ([]Migration, error) {
		return to(src, from, int(version))
	}})
}

// Force records a version as it is told, and as clean: the way out of a dirty one, once a person has looked. -1 is for nothing;
// what is less is ErrInvalid. It runs nothing, and does not ask the source whether it has the version: golang-migrate's force, in
// its command line too, does not either. It waits for others who migrate, so that it
// never makes a version clean that somebody is at, and fails as Up does.
func (g *Guard) Force(ctx context.Context, version int) error {
	if version < -1 {
		return fmt.Errorf("%w: Force(%d)", ErrInvalid, version)
	}
	return g.change(ctx, job{name: "force", act: func(ctx context.Context, r *runner) error { return r.record(ctx, version, false) }})
}

// Drop drops all tables of the first schema of the search_path, and what depends on them, as golang-migrate does; and the version
// table, wherever it is. It is all or nothing. It asks no version, waits for others who migrate, and fails as Up does;
// ErrInvalid where the lease's own tables are in that schema.
func (g *Guard) Drop(ctx context.Context) error {
	return g.change(ctx, job{name: "drop", act: func(ctx context.Context, r *runner) error { return r.drop(ctx) }})
}

// Plan says where the database is, and what Up would run. It takes no lock, waits for nothing but the server and other calls of this Guard, and
// changes nothing. A role that only checks needs USAGE on the schema of the version table and SELECT on that; while there is no such table,
// everything is pending. The error is ErrUnknownVersion, migrations.ErrPrivilege (with the GRANT that is missing), the cause of ctx,
// or what the source or PostgreSQL says.
func (g *Guard) Plan(ctx context.Context) (p Plan, err error) {
	if err := g.takeTurn(ctx, &wait{}); err != nil {
		return p, named(ctx, "plan", err)
	}
	defer g.leaveTurn()
	c, err := g.connect(ctx)
	if err != nil {
		return p, named(ctx, "plan", err)
	}
	defer c.hangUp(ctx)
	s, err := g.readState(ctx, c.conn, g.cfg.Schema)
	p.Version, p.Dirty = s.version, s.dirty
	if err == nil && !s.dirty {
		p.Migrations, err = g.plan(func(src source.Driver, from int) ([]Migration, error) { return up(src, from, -1) }, s.version)
	}
	return p, named(ctx, "plan", err)
}
