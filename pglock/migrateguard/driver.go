package migrateguard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/golang-migrate/migrate/v4/database"
	"github.com/jackc/pgx/v5/pgconn"
)

// A driver is what golang-migrate works through. It writes under the lock or not at all.
type driver struct {
	*runner
	ctx    context.Context // golang-migrate's interface has no room for it
	from   int             // where the database is
	next   int             // where the migration goes
	marked bool            // next is recorded as dirty
	unsure bool            // nobody knows whether what was recorded last was committed
}

var _ database.Driver = (*driver)(nil)

// SetVersion is called before and after each Run. A version is marked as dirty by Run, when it has read the file: an error before
// that is not to leave a dirty version, nor the goroutine behind that golang-migrate reads ahead with.
func (d *driver) SetVersion(version int, dirty bool) error {
	if dirty {
		d.next = version
		return nil
	}
	err := d.write(version, false)
	if err == nil {
		d.marked = false
	}
	return err
}

func (d *driver) write(version int, dirty bool) error {
	err := d.record(d.ctx, version, dirty)
	d.unsure = errors.Is(err, errUnanswered) || errors.Is(err, errOtherServer)
	return err
}

// Run sends one file, in one message.
func (d *driver) Run(r io.Reader) error {
	text, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	sql := strings.TrimPrefix(string(text), "\ufeff") // a byte order mark is no SQL; psql takes it away, too
	if strings.TrimSpace(sql) == "" {
		return nil
	}
	if err := d.write(d.next, true); err != nil {
		return err
	}
	d.marked = true
	if d.lease != nil && d.lease.Err() != nil { // the answer took longer than the lease lasts
		return d.lost(d.lease.Err())
	}
	if _, err := d.session.conn.Exec(d.ctx, sql); err != nil {
		if pgconn.SafeToRetry(err) && d.write(d.from, false) == nil { // nothing was sent: ctx had just ended
			d.marked = false
		}
		if cause := context.Cause(d.ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		if !d.session.direct { // it may have committed some of it before
			d.session.moveBack(d.ctx) //nolint:errcheck // the file's error is the one to tell
		}
		return fileError(sql, err)
	}
	if status := d.session.conn.PgConn().TxStatus(); status != 'I' {
		return errors.New("the file leaves a transaction open: end it with COMMIT, or leave BEGIN away (what it did is rolled back)")
	}
	return d.session.moveBack(d.ctx)
}

// Version is read from the table each time.
func (d *driver) Version() (version int, dirty bool, err error) {
	s, err := d.g.readState(d.ctx, d.session.conn, d.schema)
	if err == nil && s.server != d.server {
		err = errOtherServer
	}
	d.from = s.version
	return s.version, s.dirty, err
}

// Lock and Unlock do nothing, since the runner has the lock.
func (d *driver) Lock() error { return nil }

// Unlock does nothing, see Lock.
func (d *driver) Unlock() error { return nil }

// Close does nothing: whoever opened the connection closes it.
func (d *driver) Close() error { return nil }

// Open is for drivers that are registered by name.
func (d *driver) Open(string) (database.Driver, error) {
	return nil, errors.New("migrateguard: not a registered driver")
}

// Drop is the guard's own.
func (d *driver) Drop() error { return errors.New("migrateguard: use Guard.Drop") }
