package pglock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// waitsFor blocks until the client with application_name "waiter" has asked again, so long after this moment.
func waitsFor(t *testing.T, d *pgtest.Database, long time.Duration) {
	t.Helper()
	now := pgtest.Query[time.Time](t, d, `SELECT clock_timestamp()`)
	d.WaitFor(t, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'waiter' AND query_start > $1)`, now.Add(long))
}

func waiter(t *testing.T, d *pgtest.Database) *pglock.Client {
	t.Helper()
	return open(t, with(t, d.URL, "application_name", "waiter"), pglock.Config{})
}

// However long the wait was, and whatever it was for, the lease begins when it is granted.
func TestALeaseIsCountedFromItsGrantNotFromTheWait(t *testing.T) {
	t.Parallel()
	const ttl, wait = 3 * time.Second, time.Second
	end := func(sql string) func(*testing.T, *pgtest.Database) func() {
		return func(t *testing.T, d *pgtest.Database) func() {
			conn := d.Conn(t)
			if _, err := conn.Exec(t.Context(), `BEGIN; SELECT FROM pglock.leases WHERE name = 'a' FOR UPDATE`); err != nil {
				t.Fatal(err)
			}
			return func() {
				if _, err := conn.Exec(t.Context(), sql); err != nil {
					t.Error(err)
				}
			}
		}
	}
	for what, occupy := range map[string]func(t *testing.T, d *pgtest.Database) (leave func()){
		"a lock on the row, rolled back":  end(`ROLLBACK`),
		"a lock on the row, committed":    end(`COMMIT`),
		"a write to the row, committed":   end(`UPDATE pglock.leases SET metadata = '1'; COMMIT`),
		"a write to the row, rolled back": end(`UPDATE pglock.leases SET metadata = '1'; ROLLBACK`),
		"the row deleted":                 end(`DELETE FROM pglock.leases; COMMIT`),
		"another holder": func(t *testing.T, d *pgtest.Database) func() {
			l := take(t, client(t, d), "a")
			return func() { release(t, l) }
		},
		"another holder that vanished": func(t *testing.T, d *pgtest.Database) func() {
			take(t, client(t, d), "a", pglock.NoRenewal())
			return func() { d.Age(t, "a", time.Minute) }
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			take(t, client(t, d), "a", pglock.NoRenewal())
			d.Age(t, "a", time.Minute) // expired
			leave := occupy(t, d)
			c := waiter(t, d)
			refused(t, c, "a")
			waiting := acquiring(soon(t), c, "a", pglock.TTL(ttl), pglock.NoRenewal())
			waitsFor(t, d, wait)

			leave()
			l := granted(t, waiting)

			trusted := time.Until(l.Deadline())
			if inDatabase := left(t, d, "a"); inDatabase < ttl-wait || inDatabase > ttl {
				t.Errorf("after a wait of %v the database leaves %v of %v", wait, inDatabase, ttl)
			}
			if trusted < ttl-wait || trusted > ttl {
				t.Errorf("after a wait of %v the lease is trusted for %v of %v", wait, trusted, ttl)
			}
			refused(t, client(t, d), "a")
		})
	}
}

func TestALockedRowIsHeldAndNotWaitedFor(t *testing.T) {
	t.Parallel()
	for _, strength := range []string{"KEY SHARE", "SHARE", "NO KEY UPDATE", "UPDATE"} {
		t.Run(strength, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			c := client(t, d)
			release(t, take(t, c, "a"))
			conn := d.Conn(t)
			if _, err := conn.Exec(t.Context(), `BEGIN; SELECT FROM pglock.leases FOR `+strength); err != nil {
				t.Fatal(err)
			}
			if held := refused(t, c, "a"); held.Remaining != 0 {
				t.Errorf("%v left, want 0: nobody holds it", held.Remaining)
			}
			release(t, take(t, c, "b")) // others go on
		})
	}
}

var errShutdown = errors.New("shutting down")

func TestAWaitEndedByItsContextSaysWhatItWaitedForAndWhy(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	holder := take(t, open(t, d.URL, pglock.Config{Owner: "the holder"}), "a")
	for what, end := range map[string]struct {
		ctx    func(context.Context) (context.Context, func())
		causes []error
	}{
		"deadline": {func(ctx context.Context) (context.Context, func()) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			return ctx, cancel
		}, []error{context.DeadlineExceeded}},
		"cancel": {func(ctx context.Context) (context.Context, func()) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(500*time.Millisecond, cancel)
			return ctx, cancel
		}, []error{context.Canceled}},
		"cancel with a cause": {func(ctx context.Context) (context.Context, func()) {
			ctx, cancel := context.WithCancelCause(ctx)
			time.AfterFunc(500*time.Millisecond, func() { cancel(errShutdown) })
			return ctx, func() { cancel(nil) }
		}, []error{errShutdown}},
		"deadline with a cause": {func(ctx context.Context) (context.Context, func()) {
			return context.WithTimeoutCause(ctx, 500*time.Millisecond, errShutdown)
		}, []error{errShutdown}},
	} {
		for how, call := range map[string]func(context.Context, *pglock.Client) error{
			"Acquire": func(ctx context.Context, c *pglock.Client) error { _, err := c.Acquire(ctx, "a"); return err },
			"Do": func(ctx context.Context, c *pglock.Client) error {
				return c.Do(ctx, "a", func(context.Context, *pglock.Lease) error {
					t.Error("it ran")
					return nil
				})
			},
		} {
			t.Run(how+", "+what, func(t *testing.T) {
				t.Parallel()
				c := client(t, d)
				refused(t, c, "a") // connected
				ctx, cancel := end.ctx(t.Context())
				defer cancel()
				err := call(ctx, c)
				for _, want := range append(end.causes, pglock.ErrHeld) {
					wantErr(t, how, err, want)
				}
				var held *pglock.HeldError
				if !errors.As(err, &held) || held.Owner != "the holder" || held.Token != holder.Token() {
					t.Errorf("%s = %v, want it to say who holds", how, err)
				}
			})
		}
	}
}

func TestACallWithAnEndedContextSendsNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	p := pgtest.NewProxy(t, d)
	c := open(t, p.URL(), pglock.Config{})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errShutdown)
	for how, call := range map[string]func() error{
		"TryAcquire": func() error { _, err := c.TryAcquire(ctx, "a"); return err },
		"Acquire":    func() error { _, err := c.Acquire(ctx, "a"); return err },
		"Do":         func() error { return c.Do(ctx, "a", func(context.Context, *pglock.Lease) error { return nil }) },
	} {
		wantErr(t, how, call(), errShutdown)
	}
	if n := p.Conns(); n != 0 || len(p.Counts().ToServer) != 0 {
		t.Errorf("%d connections, sent %v", n, p.Counts().ToServer)
	}
}

func TestTheContextOfAcquiringDoesNotBoundTheLease(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	type key struct{}
	ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "kept"), patience)
	l, err := client(t, d).Acquire(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if !l.Valid() || l.Context().Err() != nil {
		t.Errorf("ended with the ctx that acquired it: %v", l.Err())
	}
	if _, bounded := l.Context().Deadline(); bounded || l.Context().Value(key{}) != "kept" {
		t.Error("the lease's context has a deadline, or lost its values")
	}
	wantErr(t, "Renew", l.Renew(soon(t)), nil)
}

func TestAWaiterPinsNothingInTheDatabase(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, `CREATE TABLE items AS SELECT n FROM generate_series(1, 1000) n`)
	take(t, client(t, d), "a")
	ctx, cancel := context.WithCancel(t.Context())
	waiting := acquiring(ctx, waiter(t, d), "a")
	waitsFor(t, d, 0)

	d.Exec(t, `CREATE INDEX CONCURRENTLY ON items (n)`) // waits for every snapshot that is older

	if !pgtest.Query[bool](t, d, `SELECT bool_and(indisvalid) FROM pg_index WHERE indrelid = 'items'::regclass`) {
		t.Error("the index is not valid")
	}
	conn := d.Conn(t)
	for range 100 {
		var what string
		if err := conn.QueryRow(t.Context(), `SELECT coalesce(string_agg(state || ': ' || query, '; '), '') FROM pg_stat_activity
			WHERE application_name = 'waiter' AND (state LIKE 'idle in transaction%' OR xact_start < clock_timestamp() - interval '1 s')`).Scan(&what); err != nil || what != "" {
			t.Errorf("the waiter keeps a transaction open: %s", what)
		}
	}
	cancel()
	if got := happens(t, "Acquire ends with its ctx", waiting); !errors.Is(got.err, context.Canceled) {
		t.Errorf("Acquire = %v", got.err)
	}
}
