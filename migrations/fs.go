package migrations

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io/fs"
)

// FS returns the files rendered for a schema, NNNN_name.up.sql and NNNN_name.down.sql, for those who apply SQL with a tool
// of their own: each runs as it is inside one transaction, contains neither BEGIN nor COMMIT, and ends by recording itself,
// so that a later [Up] finds what was done. The error is about the name, and [ErrInvalid]: see [Schema] for which will do.
// Safe for concurrent use.
func FS(schema string) (fs.FS, error) {
	if err := checkSchema(schema); err != nil {
		return nil, fmt.Errorf("migrations: %w: %w", ErrInvalid, err)
	}
	files, err := readFiles(embedded)
	if err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	return renderedFS(files, schema)
}

// renderedFS is an archive in memory, because the standard library's reader of one is a complete file system.
func renderedFS(files []file, schema string) (fs.FS, error) {
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	for _, f := range files {
		up := f.up + fmt.Sprintf("\nINSERT INTO pglock.migrations (version, sha256) VALUES (%d, '%s');\n", f.version, f.sha256())
		down := f.down
		if f.version > 1 { // the first one takes the table itself away
			down += fmt.Sprintf("\nDELETE FROM pglock.migrations WHERE version = %d;\n", f.version)
		}
		for name, text := range map[string]string{f.name + ".up.sql": up, f.name + ".down.sql": down} {
			out, err := w.Create(name)
			if err != nil {
				return nil, err
			}
			if _, err := out.Write([]byte(render(text, schema))); err != nil {
				return nil, err
			}
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return zip.NewReader(bytes.NewReader(buf.Bytes()), int64(buf.Len()))
}
