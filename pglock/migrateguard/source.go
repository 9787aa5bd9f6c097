package migrateguard

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"

	"github.com/golang-migrate/migrate/v4/source"
)

// wholeFiles reads each file to its end before golang-migrate gets it. Golang-migrate takes an error in the middle of a file for
// its end: it would run what came before the error, and record the version.
//
// A source may be shared by several guards. Golang-migrate's put their versions in order when they are first asked for one.
type wholeFiles struct{ source.Driver }

// ordering is locked while any source is asked for a version.
var ordering sync.Mutex

func (w wholeFiles) First() (version uint, err error) {
	ordering.Lock()
	defer ordering.Unlock()
	return w.Driver.First()
}

func (w wholeFiles) Prev(version uint) (before uint, err error) {
	ordering.Lock()
	defer ordering.Unlock()
	return w.Driver.Prev(version)
}

func (w wholeFiles) Next(version uint) (after uint, err error) {
	ordering.Lock()
	defer ordering.Unlock()
	return w.Driver.Next(version)
}

func (w wholeFiles) ReadUp(version uint) (io.ReadCloser, string, error) {
	return whole(w.Driver.ReadUp(version))
}

func (w wholeFiles) ReadDown(version uint) (io.ReadCloser, string, error) {
	return whole(w.Driver.ReadDown(version))
}

func whole(r io.ReadCloser, name string, err error) (io.ReadCloser, string, error) {
	if err != nil {
		return nil, "", err
	}
	text, err := io.ReadAll(r)
	if err = errors.Join(err, r.Close()); err != nil {
		return nil, "", fmt.Errorf("read migration %q: %w", name, err)
	}
	return io.NopCloser(bytes.NewReader(text)), name, nil
}

// missing tells the end of a source, or a half that a migration does not have, from a source that failed.
func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// other is where a migration to a version most likely came from: from the version before it, or, to nothing, from the first.
// -1 for nothing.
func other(src source.Driver, version int) int {
	from, err := src.First()
	if version >= 0 {
		from, err = src.Prev(uint(version))
	}
	if err != nil {
		return -1
	}
	return int(from) //nolint:gosec // as golang-migrate does
}
