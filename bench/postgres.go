package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
)

// maxCallers is the size of every pool: no caller waits for a connection.
const maxCallers = 64

// A postgres is what questions want to know of the server, over a connection of its own.
type postgres struct {
	conn       *pgx.Conn
	counts     bool // pg_stat_statements is there
	postmaster int  // its process id; 0 where there is no /proc
}

// startPostgres starts a server that flushes every commit. pg_stat_statements is loaded, where it is installed, and switched off
// unless a question counts.
func startPostgres(ctx context.Context) (*server, error) {
	o := pgtemp.Options{Durable: true, Fresh: true, Settings: map[string]string{
		"max_connections": "600", "shared_buffers": "128MB", "max_wal_size": "1GB", "autovacuum_naptime": "1min", // the last three: the defaults
		"shared_preload_libraries": "pg_stat_statements",
	}}
	counts := true
	p, err := pgtemp.Start(ctx, o)
	if err != nil {
		counts = false
		delete(o.Settings, "shared_preload_libraries")
		if p, err = pgtemp.Start(ctx, o); err != nil {
			return nil, err
		}
	}
	s := &server{
		name: onPostgres, url: p.URL("postgres"), version: p.How(),
		stop: func() { p.Stop() }, //nolint:errcheck // it is thrown away
	}
	s.postgres = &postgres{counts: counts}
	if err := s.postgres.connect(ctx, s); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func (p *postgres) connect(ctx context.Context, s *server) (err error) {
	if p.conn, err = pgx.Connect(ctx, s.url); err != nil {
		return err
	}
	if p.counts {
		if _, err := p.conn.Exec(ctx, `CREATE EXTENSION pg_stat_statements`); err != nil {
			return err
		}
		if err := p.track(ctx, "none"); err != nil {
			return err
		}
	}
	const settings = `SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings
		WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes', 'wal_level', 'wal_sync_method')`
	if err := p.conn.QueryRow(ctx, settings).Scan(&s.settings); err != nil {
		return err
	}
	if stat, err := readStat(int(p.conn.PgConn().PID())); err == nil {
		p.postmaster = stat.parent
	}
	return nil
}

// query answers one value.
func query[T any](ctx context.Context, p *postgres, sql string, args ...any) (v T, err error) {
	err = p.conn.QueryRow(ctx, sql, args...).Scan(&v)
	return v, err
}

// errUncounted: there is nothing to count statements with.
var errUncounted = errors.New("pg_stat_statements is not installed")

// countStatements counts what all sessions send while f runs, BEGIN and COMMIT included. Inside functions nothing is counted.
func (p *postgres) countStatements(ctx context.Context, f func() error) (n float64, err error) {
	if !p.counts {
		return 0, errUncounted
	}
	if err := p.track(ctx, "top"); err != nil {
		return 0, err
	}
	if _, err := p.conn.Exec(ctx, `SELECT pg_stat_statements_reset()`); err != nil {
		return 0, err
	}
	failed := f()
	n, err = query[float64](ctx, p, `SELECT coalesce(sum(calls), 0)::float8 FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'`)
	if err == nil && n == 0 {
		err = errors.New("no statement was counted: that cannot be")
	}
	return n, errors.Join(failed, err, p.track(ctx, "none"))
}

func (p *postgres) track(ctx context.Context, what string) error {
	if _, err := p.conn.Exec(ctx, `ALTER SYSTEM SET pg_stat_statements.track = `+what); err != nil {
		return err
	}
	if _, err := p.conn.Exec(ctx, `SELECT pg_reload_conf()`); err != nil {
		return err
	}
	return sleep(ctx, 300*time.Millisecond) // until all sessions have read it
}

// cpu is the processor time that the server's processes have used, the ended ones included.
func (p *postgres) cpu() (time.Duration, error) {
	if p.postmaster == 0 {
		return 0, errors.New("the time of processes is read from /proc, on Linux")
	}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	var ticks int
	for _, dir := range all {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		stat, err := readStat(pid)
		switch {
		case err != nil: // it has ended
		case pid == p.postmaster:
			ticks += stat.own + stat.children
		case stat.parent == p.postmaster:
			ticks += stat.own
		}
	}
	return time.Duration(ticks) * (time.Second / 100), nil // USER_HZ is 100 on every Linux that Go runs on
}

type processStat struct{ parent, own, children int }

func readStat(pid int) (s processStat, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s, err
	}
	_, rest, _ := strings.Cut(string(b), ") ") // after the program's name, which may have blanks
	f := strings.Fields(rest)
	if len(f) < 15 {
		return s, fmt.Errorf("/proc/%d/stat: %q", pid, b)
	}
	number := func(i int) int { n, _ := strconv.Atoi(f[i]); return n }
	return processStat{parent: number(1), own: number(11) + number(12), children: number(13) + number(14)}, nil
}

func openPool(ctx context.Context, url string) (*pgxpool.Pool, error) {
	c, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	c.MaxConns = maxCallers
	return pgxpool.NewWithConfig(ctx, c)
}

func openSQL(url string) (*sql.DB, error) {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(maxCallers)
	db.SetMaxIdleConns(maxCallers)
	return db, nil
}

func execute(ctx context.Context, url, statements string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, statements)
	return err
}
