package migrations

import (
	"crypto/sha256"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

//go:embed *.sql
var embedded embed.FS

// A file is one step of the schema: the text that makes it and the text that takes it away, as they were written.
type file struct {
	version  int64
	name     string // 0001_leases
	up, down string
}

// sha256 is what the record of the file holds: of the text as it was written, so that it is the same in every schema.
func (f file) sha256() string { return fmt.Sprintf("%x", sha256.Sum256([]byte(f.up))) }

// readFiles lists the files in the order of their versions.
func readFiles(fsys fs.FS) ([]file, error) {
	names, err := fs.Glob(fsys, "*.up.sql")
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	files := make([]file, 0, len(names))
	for _, up := range names {
		f := file{name: strings.TrimSuffix(path.Base(up), ".up.sql")}
		if _, err := fmt.Sscanf(f.name, "%d_", &f.version); err != nil {
			return nil, fmt.Errorf("%s: want a name like 0001_name.up.sql", up)
		}
		for _, half := range []struct {
			name string
			text *string
		}{{up, &f.up}, {f.name + ".down.sql", &f.down}} {
			b, err := fs.ReadFile(fsys, half.name)
			if err != nil {
				return nil, err
			}
			*half.text = string(b)
		}
		files = append(files, f)
	}
	return files, nil
}
