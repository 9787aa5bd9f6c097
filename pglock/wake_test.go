package pglock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

func listening(t testing.TB, c *pglock.Client) {
	t.Helper()
	eventually(t, "the client hears", func() bool { return pglock.Listening(c) })
}

func deaf(t testing.TB, c *pglock.Client) {
	t.Helper()
	eventually(t, "the client notices that it hears nothing", func() bool { return !pglock.Listening(c) })
}

// attentive is a client that hears, because it has waited. Where it hears, it asks only when it is woken.
func attentive(t testing.TB, d *pgtest.Database, url string, cfg pglock.Config) *pglock.Client {
	t.Helper()
	c := open(t, url, cfg)
	pglock.OnlyWhenWoken(c)
	l := take(t, client(t, d), "warm-up")
	waiting := acquiring(soon(t), c, "warm-up")
	listening(t, c)
	release(t, l)
	release(t, granted(t, waiting))
	return c
}

// With polling turned off, one wake-up that is lost is a waiter that sleeps until the holder's lease would be over. The release
// comes at any moment of the other's asking, marking and falling asleep. 10,000 rounds under PGLOCK_LONG=1.
func TestNoWakeUpIsLost(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	clients := [2]*pglock.Client{}
	for i := range clients {
		clients[i] = attentive(t, d, d.URL, pglock.Config{TTL: 30 * time.Second})
	}
	l := take(t, clients[0], "a")
	for i := range pgtest.Rounds(300, 10_000) {
		waiting := acquiring(soon(t), clients[(i+1)%2], "a")
		time.Sleep(time.Duration(rand.Int64N(int64(4 * time.Millisecond)))) // no wait for anything: the moment is left to chance
		release(t, l)
		got := happens(t, "the wake-up", waiting)
		if got.err != nil {
			t.Fatalf("round %d: %v", i, got.err)
		}
		l = got.lease
	}
	release(t, l)
}

// Each wait is over before it has asked often; but there are many, and each would last until the next question.
func TestAClientThatWaitsOftenListensThoughEachWaitIsShort(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	p := pgtest.NewProxy(t, d)
	holder, c := client(t, d), open(t, p.URL(), pglock.Config{})
	release(t, take(t, c, "another")) // it is connected
	for range 8 {
		l := take(t, holder, "a")
		before := p.Counts()
		waiting := acquiring(soon(t), c, "a")
		eventually(t, "it has asked", func() bool { return p.Counts().Since(before).RoundTrips() > 0 })
		release(t, l)
		release(t, granted(t, waiting))
	}
	listening(t, c)
}

// A thousand goroutines of one process wait for what another process holds. It costs two connections and hardly more than one
// statement for each that is served.
func TestAThousandWaitersInOneProcessCostOneStatementEach(t *testing.T) {
	const waiters = 1000
	d := pgtest.DB(t)
	p := pgtest.NewProxy(t, d)
	c := open(t, p.URL(), pglock.Config{})
	first := take(t, client(t, d), "a")
	answers := make(chan error, waiters)
	for range waiters {
		go func() {
			answers <- c.Do(t.Context(), "a", func(context.Context, *pglock.Lease) error { return nil })
		}()
	}
	queued(t, c, "a", waiters)
	d.WaitFor(t, `SELECT EXISTS (SELECT FROM pglock.waits)`)
	if n := p.Conns(); n > 2 {
		t.Errorf("%d connections while they wait, want 2 at most", n)
	}
	before, began := p.Counts(), time.Now()
	release(t, first)
	for range waiters {
		wantErr(t, "Do", happens(t, "its turn", answers), nil)
	}
	n := p.Counts().Since(before).RoundTrips()
	t.Logf("%d waiters were served in %v, with %d statements", waiters, time.Since(began).Round(time.Millisecond), n)
	if n > waiters*12/10 {
		t.Errorf("%d statements for %d grants, want at most 1.2 each", n, waiters)
	}
}

// Hundreds of names are waited for over the same two connections, and nothing in the database stands still for them.
func TestWaitersKeepNeitherVacuumNorAnIndexFromFinishing(t *testing.T) {
	t.Parallel()
	const names = 100
	d := pgtest.DB(t)
	d.Exec(t, `CREATE TABLE items AS SELECT n FROM generate_series(1, 1000) n`)
	holder := client(t, d)
	p := pgtest.NewProxy(t, d)
	c := open(t, p.URL(), pglock.Config{})
	ctx, enough := context.WithCancel(t.Context())
	var answers []<-chan acquired
	for i := range names {
		take(t, holder, fmt.Sprint("lock ", i))
		answers = append(answers, acquiring(ctx, c, fmt.Sprint("lock ", i)))
	}
	d.WaitFor(t, `SELECT count(*) = $1 FROM pglock.waits`, names)

	d.Exec(t, `CREATE INDEX CONCURRENTLY ON items (n)`)
	d.Exec(t, `DELETE FROM items`)
	d.Exec(t, `VACUUM items`)

	if n := pgtest.Query[int64](t, d, `SELECT pg_relation_size('items')`); n != 0 {
		t.Errorf("VACUUM left %d bytes of deleted rows", n)
	}
	if n := p.Conns(); n > 2 {
		t.Errorf("%d connections, want 2 at most", n)
	}
	enough()
	for _, a := range answers {
		wantErr(t, "Acquire", happens(t, "it ends with its ctx", a).err, pglock.ErrHeld)
	}
}

// What a wake-up was for has given up: another process is woken instead.
func TestAWakeUpForOneWhoGaveUpGoesToAnother(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	holder := client(t, d)
	first, second := attentive(t, d, d.URL, pglock.Config{}), attentive(t, d, d.URL, pglock.Config{})
	for range pgtest.Rounds(20, 500) {
		l := take(t, holder, "a", pglock.TTL(30*time.Second))
		ctx, giveUp := context.WithCancel(t.Context())
		gone := acquiring(ctx, first, "a")
		d.WaitFor(t, `SELECT count(*) = 1 FROM pglock.waits`)
		waiting := acquiring(soon(t), second, "a")
		d.WaitFor(t, `SELECT count(*) = 2 FROM pglock.waits`)
		time.AfterFunc(time.Duration(rand.Int64N(int64(4*time.Millisecond))), giveUp)
		release(t, l)
		if got := happens(t, "the first comes back", gone); got.err == nil {
			release(t, got.lease)
		}
		release(t, granted(t, waiting))
		// The first may have been granted it at that moment, and gives it back.
		d.WaitFor(t, `SELECT NOT EXISTS (SELECT FROM pglock.waits) AND NOT EXISTS (SELECT FROM pglock.leases WHERE expires_at > 'epoch')`)
	}
}

// A wake-up may be on its way while its waiter gives up. When it arrives, another is woken.
func TestAWakeUpThatComesTooLateIsPassedOn(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	first, second := attentive(t, d, d.URL, pglock.Config{}), attentive(t, d, d.URL, pglock.Config{})
	take(t, client(t, d), "a", pglock.TTL(30*time.Second), pglock.NoRenewal())
	ctx, giveUp := context.WithCancel(t.Context())
	gone := acquiring(ctx, first, "a")
	d.WaitFor(t, `SELECT count(*) = 1 FROM pglock.waits`)
	mark := pgtest.Query[[]string](t, d, `SELECT ARRAY['pglock_' || client, wait || ' a'] FROM pglock.waits`)
	giveUp()
	wantErr(t, "giving up", happens(t, "it gives up", gone).err, context.Canceled)
	d.WaitFor(t, `SELECT count(*) = 0 FROM pglock.waits`)
	waiting := acquiring(soon(t), second, "a")
	d.WaitFor(t, `SELECT count(*) = 1 FROM pglock.waits`)
	d.Age(t, "a", time.Minute) // free, and nobody was woken

	d.Exec(t, `SELECT pg_notify($1, $2)`, mark[0], mark[1])

	granted(t, waiting)
}

// The listener's connection is cut, and no new one can be made. Waiters ask by themselves at once; when the network is back,
// so is the listener.
func TestPollingTakesOverWhenTheListenerIsCut(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	p := pgtest.NewProxy(t, d)
	c := attentive(t, d, d.URL, pglock.Config{ListenURL: p.URL()})
	l := take(t, client(t, d), "a", pglock.TTL(30*time.Second))
	waiting := acquiring(soon(t), c, "a")
	d.WaitFor(t, `SELECT EXISTS (SELECT FROM pglock.waits)`)

	p.Refuse(true)
	p.Cut()
	deaf(t, c)
	release(t, l)

	l = granted(t, waiting)
	if pglock.Listening(c) {
		t.Error("it hears over a connection that was cut")
	}
	release(t, l)
	l = take(t, client(t, d), "a", pglock.TTL(30*time.Second))
	waiting = acquiring(slow(t), c, "a")
	p.Refuse(false)
	listening(t, c)
	d.WaitFor(t, `SELECT EXISTS (SELECT FROM pglock.waits)`)
	release(t, l)
	granted(t, waiting)
}

// A connection that goes silent is noticed when the proof that it hears is due again.
func TestASilentListenerIsFoundOut(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	p := pgtest.NewProxy(t, d)
	c := open(t, d.URL, pglock.Config{ListenURL: p.URL()})
	pglock.ProveEvery(c, 100*time.Millisecond)
	pglock.OnlyWhenWoken(c)
	l := take(t, client(t, d), "a", pglock.TTL(30*time.Second))
	waiting := acquiring(slow(t), c, "a")
	d.WaitFor(t, `SELECT EXISTS (SELECT FROM pglock.waits)`)
	p.Stall(pgtest.ToClient)
	defer p.Resume()

	release(t, l) // the wake-up never arrives

	deaf(t, c)
	release(t, granted(t, waiting))
}

func TestWaitingWorksBehindATransactionPooler(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	url := pooler(t, d)
	holder := client(t, d)
	t.Run("polling", func(t *testing.T) {
		t.Parallel()
		c := open(t, url, pglock.Config{})
		pglock.OnlyWhenWoken(c)
		l := take(t, holder, "a", pglock.TTL(30*time.Second))
		waiting := acquiring(soon(t), c, "a")
		d.WaitFor(t, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%pg_notify(%')`) // the proof was sent
		if pglock.Listening(c) {
			t.Error("it takes itself to hear through the pooler, and nothing has arrived")
		}
		release(t, l)
		release(t, granted(t, waiting))
	})
	t.Run("with a connection to listen", func(t *testing.T) {
		t.Parallel()
		c := attentive(t, d, url, pglock.Config{ListenURL: d.URL})
		l := take(t, holder, "b", pglock.TTL(30*time.Second))
		waiting := acquiring(soon(t), c, "b")
		d.WaitFor(t, `SELECT EXISTS (SELECT FROM pglock.waits WHERE name = 'b')`)
		release(t, l)
		release(t, granted(t, waiting))
	})
}

func TestWaitingOutlivesARestartOfTheServer(t *testing.T) {
	t.Parallel()
	s, d := pgtest.OwnServer(t, pgtemp.Options{Durable: true})
	c := attentive(t, d, d.URL, pglock.Config{})
	l := take(t, client(t, d), "a", pglock.TTL(30*time.Second))
	ctx := slow(t)
	answers := []<-chan acquired{acquiring(ctx, c, "a")}
	queued(t, c, "a", 1)
	answers = append(answers, acquiring(ctx, c, "a"))
	queued(t, c, "a", 2)

	if err := s.Restart(slow(t), pgtemp.Immediate); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "Renew", l.Renew(slow(t)), nil)
	d.Exec(t, `SELECT pglock.check_in(0)`)
	d.Exec(t, `UPDATE pglock.guard SET no_grants_before = 'epoch'`) // as time would
	listening(t, c)
	d.WaitFor(t, `SELECT EXISTS (SELECT FROM pglock.waits)`) // the crash had emptied it

	release(t, l)
	for _, a := range answers {
		got := happens(t, "its turn", a)
		if got.err != nil {
			t.Fatal(got.err)
		}
		release(t, got.lease)
	}
}

func TestAListenURLThatIsNoneIsRefused(t *testing.T) {
	_, err := pglock.Open("postgres://nobody@127.0.0.1:1/none", pglock.Config{ListenURL: "no such thing"})
	wantErr(t, "Open", err, pglock.ErrInvalidOption)
}

// A role that may lock may wait, and needs no further right for it.
func TestALockerMayWait(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	role := d.Role(t)
	d.Exec(t, `SELECT pglock.grant_locker('`+role+`')`)
	c := attentive(t, d, d.URLAs(role), pglock.Config{})
	l := take(t, client(t, d), "a", pglock.TTL(30*time.Second))
	waiting := acquiring(soon(t), c, "a")
	d.WaitFor(t, `SELECT EXISTS (SELECT FROM pglock.waits)`)
	release(t, l)
	granted(t, waiting)
}

// Whoever asks again at once is always faster than one that has to be woken. What it remembers for that is forgotten.
func TestAProcessThatIsFasterEachTimeStepsBack(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := client(t, d)
	waiting := func(name string) { // in another process, and never fast enough
		d.Exec(t, `INSERT INTO pglock.waits (name, client, wait, since, until, fair)
			VALUES ($1, gen_random_uuid(), 1, clock_timestamp(), clock_timestamp() + interval '1 minute', false)`, name)
	}
	waiting("a")
	stepped := false
	for range 100 {
		release(t, granted(t, acquiring(soon(t), c, "a")))
		if stepped = pglock.StepsBack(c, "a"); stepped {
			break
		}
		d.Exec(t, `UPDATE pglock.waits SET until = clock_timestamp() + interval '1 minute'`)
	}
	if !stepped {
		t.Error("it goes on, though another process waits")
	}
	l := granted(t, acquiring(soon(t), c, "a")) // a moment later
	if pglock.StepsBack(c, "a") {
		t.Error("it has not let the other one ask first")
	}
	release(t, l)
	eventually(t, "it forgets", func() bool {
		waiting("b")
		release(t, granted(t, acquiring(soon(t), c, "b")))
		d.Exec(t, `DELETE FROM pglock.waits`)
		return pglock.Queues(c) == 1
	})
	for i := range 20 { // one name that is always in demand keeps no other in memory
		waiting(fmt.Sprint(i))
		release(t, granted(t, acquiring(soon(t), c, fmt.Sprint(i))))
	}
	eventually(t, "it forgets the others", func() bool {
		waiting("hot")
		release(t, granted(t, acquiring(soon(t), c, "hot")))
		d.Exec(t, `DELETE FROM pglock.waits`)
		return pglock.Queues(c) <= 2
	})
}

// Who does not wait for its release may ask again in the same batch: the lock is not free between. It has to step back all the same.
func TestAProcessThatAsksBesideItsOwnReleaseStepsBack(t *testing.T) {
	t.Parallel()
	for what, names := range map[string][]string{"one name": {"a"}, "several": {"Z", "a"}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			p := pgtest.NewProxy(t, d)
			c := warm(t, p)
			asking := func() <-chan acquired {
				return async(func() acquired {
					l, err := c.AcquireAll(slow(t), names)
					return acquired{l, err}
				})
			}
			l := granted(t, asking())
			waiting := acquiring(slow(t), client(t, d), "a")
			waits(t, d, 1)
			ended, end := context.WithCancel(t.Context())
			end()
			for i := range 100 {
				p.Stall(pgtest.ToClient)
				busy := acquiring(slow(t), c, fmt.Sprint(i))
				d.WaitFor(t, `SELECT EXISTS (SELECT FROM pglock.leases WHERE name = $1 AND token > 0)`, fmt.Sprint(i))
				wantErr(t, "Release", l.Release(ended), pglock.ErrNotReleased)
				again := asking()
				eventually(t, "it asks, or steps back", func() bool { return pglock.Asks(c) == 1 || pglock.IsYielding(c, "a") })
				p.Resume()
				release(t, granted(t, busy))
				select {
				case got := <-waiting:
					if got.err != nil {
						t.Fatal(got.err)
					}
					release(t, got.lease)
					release(t, granted(t, again))
					return
				case got := <-again:
					if got.err != nil {
						t.Fatal(got.err)
					}
					l = got.lease
				}
			}
			t.Error("it goes on, though another process waits")
		})
	}
}
