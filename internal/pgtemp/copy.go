package pgtemp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Snapshot returns a halted copy of the server as it is now, at an address of its own: what a snapshot of its disk would hold.
// Resume starts it, and it recovers as after a crash. The server may run, and stands still meanwhile. Local servers only.
func (s *Server) Snapshot() (*Server, error) {
	if s.local == nil {
		return nil, errNotLocal
	}
	c, err := newCluster(s.local.bin, s.local.settings)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(s.whileFrozen(func() error { return c.copyData(s.local.data()) }), c.choosePort()); err != nil {
		return nil, errors.Join(fmt.Errorf("pgtemp: copy the server: %w", err), c.dir.Close())
	}
	return c.server(), nil
}

// Backup returns a halted base backup of the server, with the log that it needs, at an address of its own. Resume starts it as
// a primary, on the timeline of the original: a backup whose standby file somebody has forgotten. Local servers only.
func (s *Server) Backup(ctx context.Context) (*Server, error) {
	c, err := s.backup(ctx, true)
	if err != nil {
		return nil, err
	}
	if err := c.choosePort(); err != nil {
		return nil, errors.Join(err, c.dir.Close())
	}
	return c.server(), nil
}

// backup makes a copy of the data folder of a running server; whole says that it needs no primary to get the log from.
func (s *Server) backup(ctx context.Context, whole bool) (*cluster, error) {
	if s.local == nil {
		return nil, errNotLocal
	}
	c, err := newCluster(s.local.bin, s.local.settings)
	if err != nil {
		return nil, err
	}
	err = s.session(ctx, func(conn *pgx.Conn) error { return backup(ctx, conn, s.local, c) })
	if err == nil && whole {
		const wal = "pg_wal"
		into := filepath.Join(c.data(), wal)
		err = errors.Join(os.RemoveAll(into), c.copyTree(filepath.Join(s.local.data(), wal), into))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("pgtemp: back up the server: %w", err), c.dir.Close())
	}
	return c, nil
}

// backup copies a running cluster. Between start and stop the server logs whole pages, whatever its settings, so that
// files which change under the copy are mended when the copy replays the log.
func backup(ctx context.Context, conn *pgx.Conn, from, to *cluster) error {
	start, stop := `SELECT pg_backup_start('pgtemp', fast => true)`, `SELECT labelfile FROM pg_backup_stop(wait_for_archive => false)`
	if from.bin.major < 15 {
		start, stop = `SELECT pg_start_backup('pgtemp', true, false)`, `SELECT labelfile FROM pg_stop_backup(false, false)`
	}
	if _, err := conn.Exec(ctx, start); err != nil {
		return err
	}
	if err := to.copyData(from.data()); err != nil {
		return err // the backup ends with the session
	}
	var label string
	if err := conn.QueryRow(ctx, stop).Scan(&label); err != nil {
		return err
	}
	return to.write("backup_label", label)
}

// emptied are folders whose contents mean nothing to another server.
var emptied = []string{"pg_dynshmem", "pg_notify", "pg_replslot", "pg_serial", "pg_snapshots", "pg_stat_tmp", "pg_subtrans"}

// copyData copies the data folder of a running server.
func (c *cluster) copyData(from string) error { return c.copyTree(from, c.data()) }

// copyTree copies a folder into one that is not there. A file that is gone when its turn comes is in the log, and was not
// needed.
func (c *cluster) copyTree(from, into string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		to := filepath.Join(into, name)
		switch {
		case strings.HasPrefix(name, "postmaster."):
			return nil
		case entry.IsDir():
			return errors.Join(os.Mkdir(to, 0o700), c.dir.Own(to))
		case contains(emptied, name):
			return nil
		}
		if err := copyFile(path, to); errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		return c.dir.Own(to)
	})
}

// contains reports whether one of the folders holds the file called name.
func contains(folders []string, name string) bool {
	for _, folder := range folders {
		if strings.HasPrefix(name, folder+string(filepath.Separator)) {
			return true
		}
	}
	return false
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// write makes a file in the data folder.
func (c *cluster) write(name, content string) error {
	path := filepath.Join(c.data(), name)
	return errors.Join(os.WriteFile(path, []byte(content), 0o600), c.dir.Own(path))
}
