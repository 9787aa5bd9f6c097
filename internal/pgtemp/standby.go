package pgtemp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Standby starts a hot standby of the server: a copy that follows it by streaming replication, under application_name
// "standby", and accepts read-only connections. It blocks until it does; it may still lag behind. Stop it like any server.
// The primary runs on meanwhile. Local servers only.
//
// The copy is made here and not by pg_basebackup, which not every package of the server has.
func (s *Server) Standby(ctx context.Context) (*Server, error) {
	if s.local == nil {
		return nil, errNotLocal
	}
	own := maps.Clone(s.local.settings)
	own["primary_conninfo"] = fmt.Sprintf("host=127.0.0.1 port=%d user=postgres application_name=standby", s.local.port)
	own["wal_retrieve_retry_interval"] = "100ms" // a promotion may have to wait for that long
	c, err := newCluster(s.local.bin, own)
	if err != nil {
		return nil, err
	}
	err = s.session(ctx, func(conn *pgx.Conn) error { return backup(ctx, conn, s.local, c) })
	if err == nil {
		err = c.write("standby.signal", "")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("pgtemp: copy the primary: %w", err), c.dir.Close())
	}
	return c.serve(ctx)
}

// backup copies a running cluster. Between start and stop the server logs whole pages, whatever its settings, so that
// files which change under the copy are mended when the copy replays the log.
func backup(ctx context.Context, conn *pgx.Conn, from, to *cluster) error {
	start, stop := `SELECT pg_backup_start('standby', fast => true)`, `SELECT labelfile FROM pg_backup_stop(wait_for_archive => false)`
	if from.bin.major < 15 {
		start, stop = `SELECT pg_start_backup('standby', true, false)`, `SELECT labelfile FROM pg_stop_backup(false, false)`
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

// copyData copies the data folder of a running server. A file that is gone when its turn comes is in the log, and was not
// needed.
func (c *cluster) copyData(from string) error {
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
		to := filepath.Join(c.data(), name)
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
