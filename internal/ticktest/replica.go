package ticktest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

const (
	// Every is the time between two ticks. They are at its multiples, by the clock of each replica.
	Every = 3 * time.Second

	// Crontab says the same, with seconds.
	Crontab = "*/3 * * * * *"

	// Job is the name of the job.
	Job = "tick"
)

// What a test tells a replica when it starts it.
const (
	nameVariable  = "TICKTEST_REPLICA"
	urlVariable   = "TICKTEST_URL"
	aheadVariable = "TICKTEST_AHEAD"
	hangVariable  = "TICKTEST_HANG"
)

// A Replica is the process that a scheduler is to be started in.
type Replica struct {
	Locks *pglock.Client
	Ahead time.Duration // what its clock says too much

	name  string
	hangs bool // its job does not end before the process
	pool  *pgxpool.Pool
}

// Main runs the tests of a package as pgtest.Main does, or, in a process that a test has started, a replica: serve starts a
// scheduler with the job Job, which ticks as Every says by Replica.Now, and returns what stops it and waits for the job.
func Main(m *testing.M, serve func(r *Replica) (stop func() error, err error)) {
	if os.Getenv(nameVariable) == "" {
		pgtest.Main(m)
	}
	if err := play(serve); err != nil {
		fmt.Fprintf(os.Stderr, "replica %s: %v\n", os.Getenv(nameVariable), err)
		os.Exit(1)
	}
	os.Exit(0)
}

func play(serve func(r *Replica) (func() error, error)) error {
	ctx := context.Background()
	ahead, err := time.ParseDuration(os.Getenv(aheadVariable))
	if err != nil {
		return err
	}
	r := &Replica{Ahead: ahead, name: os.Getenv(nameVariable), hangs: os.Getenv(hangVariable) != ""}
	if r.pool, err = pgxpool.New(ctx, os.Getenv(urlVariable)); err != nil {
		return err
	}
	if r.Locks, err = pglock.New(r.pool, pglock.Config{Owner: r.name}); err != nil {
		return err
	}
	stop, err := serve(r)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin) //nolint:errcheck // it ends when the test says so, or is gone
	return errors.Join(stop(), r.Locks.Close(ctx))
}

// Now is the time by the clock of the replica.
func (r *Replica) Now() time.Time { return time.Now().Add(r.Ahead) }

// Run is the job.
func (r *Replica) Run(ctx context.Context, lease *pglock.Lease) error {
	r.record(lease.Token(), "")
	fmt.Println("ran")
	if r.hangs {
		<-ctx.Done()
	}
	return ctx.Err()
}

// Refused is to be called when the job was not run.
func (r *Replica) Refused(err error) {
	why := "held"
	if !errors.Is(err, pglock.ErrHeld) {
		why = err.Error()
	}
	r.record(0, why)
}

// record writes down that the replica has asked for a tick, and what came of it. It does not go on if it cannot.
func (r *Replica) record(token fence.Token, refused string) {
	tick, late := tickAt(r.Now())
	_, err := r.pool.Exec(context.Background(), `INSERT INTO asks (tick, replica, late, token, refused) VALUES ($1, $2, $3, $4, $5)`,
		tick, r.name, late, token, refused)
	if err != nil {
		fmt.Fprintf(os.Stderr, "replica %s: %v\n", r.name, err)
		os.Exit(1)
	}
}

// tickAt is the tick that a replica asks for at a time of its clock, and how late it is.
func tickAt(now time.Time) (tick int64, late time.Duration) {
	const early = 100 * time.Millisecond // a timer may go off a little before the wall clock gets there
	tick = now.Add(early).UnixNano() / int64(Every)
	return tick, max(now.Sub(time.Unix(0, tick*int64(Every))), 0)
}

const schema = `CREATE TABLE asks (tick bigint, replica text, late interval, token bigint, refused text)`

// read answers what the replicas have recorded.
func read(t testing.TB, d *pgtest.Database) []ask {
	t.Helper()
	rows, err := d.Conn(t).Query(t.Context(), `SELECT tick, replica, late, token, refused FROM asks ORDER BY tick, token, late`)
	if err != nil {
		t.Fatal(err)
	}
	asks, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ask])
	if err != nil {
		t.Fatal(err)
	}
	return asks
}
