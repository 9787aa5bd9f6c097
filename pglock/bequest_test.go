package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// heir is a client with two ways to the database: what it asks can be held up, and what it hears.
func heir(t *testing.T, d *pgtest.Database) (c *pglock.Client, asks, hears *pgtest.Proxy) {
	t.Helper()
	asks, hears = pgtest.NewProxy(t, d), pgtest.NewProxy(t, d)
	return attentive(t, d, asks.URL(), pglock.Config{Owner: "heir", ListenURL: hears.URL(), TTL: 20 * time.Second}), asks, hears
}

func waits(t testing.TB, d *pgtest.Database, n int) {
	t.Helper()
	d.WaitFor(t, `SELECT count(*) = $1 FROM pglock.waits WHERE acquisition IS NOT NULL`, n)
}

// placed is a waiter for the lock "a" that was told to wait, under its mark.
func placed(ctx context.Context, t testing.TB, d *pgtest.Database, c *pglock.Client, opts ...pglock.Option) <-chan acquired {
	t.Helper()
	waiting := acquiring(ctx, c, "a", opts...)
	waits(t, d, 1)
	eventually(t, "it was told to wait", func() bool { return pglock.IsPlaced(c, "a") })
	return waiting
}

// ownerOfA is who holds the lock "a", as the database has it.
func ownerOfA(t testing.TB, d *pgtest.Database) string {
	t.Helper()
	return pgtest.Query[string](t, d, `SELECT coalesce((SELECT owner FROM pglock.leases WHERE name = 'a' AND expires_at > clock_timestamp()), '')`)
}

// Once a release has been answered, the lock is granted to the process that waited, though that one has not asked again. Its lease is
// short, and is renewed soon.
func TestAReleaseGrantsTheLockToTheProcessThatWaits(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]pglock.Option{"first come": nil, "fair": {pglock.Fair()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			l := take(t, client(t, d), "a", pglock.TTL(30*time.Second))
			c, p, _ := heir(t, d)
			pglock.BequestsLast(c, 0) // it comes for it
			waiting := acquiring(soon(t), c, "a", opts...)
			waits(t, d, 1)
			p.Stall(pgtest.ToServer)

			release(t, l)

			if who := ownerOfA(t, d); who != "heir" {
				t.Errorf("%q holds the lock, want the process that waits", who)
			}
			token := pgtest.Query[int64](t, d, `SELECT token FROM pglock.leases WHERE name = 'a'`)
			p.Resume()
			got := granted(t, waiting)
			if int64(got.Token()) != token {
				t.Errorf("token %d, want that of the release, %d", got.Token(), token)
			}
			if left := time.Until(got.Deadline()); left > 3*time.Second && pgtest.Query[bool](t, d, `SELECT expires_at = granted_at + interval '3 s' FROM pglock.leases WHERE name = 'a'`) {
				t.Errorf("the lease lasts %v, more than the release has granted", left)
			}
			eventually(t, "it has its TTL of 20 s", func() bool { return time.Until(got.Deadline()) > 10*time.Second })
			stillHeld(t, d, got)
			release(t, got)
			d.WaitFor(t, `SELECT NOT EXISTS (SELECT FROM pglock.waits)`)
		})
	}
}

// Who hears of it in good time has the lock, and does not ask: nothing that it asks would be answered.
func TestWhoHearsThatItWasGrantedTheLockDoesNotAsk(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]pglock.Option{"first come": nil, "fair": {pglock.Fair()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			l := take(t, client(t, d), "a", pglock.TTL(30*time.Second))
			c, asks, _ := heir(t, d)
			pglock.BequestsLast(c, 20*time.Second) // a test may have to wait for its turn
			waiting := placed(soon(t), t, d, c, opts...)
			pglock.Forward(c, 5*time.Second)
			asks.Stall(pgtest.ToServer)

			release(t, l)
			d.Age(t, "a", -time.Minute)

			got := granted(t, waiting)
			if left := time.Until(got.Deadline()); left > 15*time.Second || left < 10*time.Second {
				t.Errorf("it trusts the lease for %v, and it was made 5 s ago", left)
			}
			if token := pgtest.Query[int64](t, d, `SELECT token FROM pglock.leases WHERE name = 'a'`); int64(got.Token()) != token {
				t.Errorf("token %d, want that of the release, %d", got.Token(), token)
			}
			asks.Resume()
			ctx, giveUp := context.WithCancel(t.Context())
			behind := acquiring(ctx, c, "a")
			queued(t, c, "a", 1)
			giveUp()
			var held *pglock.HeldError
			err := happens(t, "one behind it gives up", behind).err
			if since := pgtest.Query[time.Time](t, d, `SELECT granted_at FROM pglock.leases WHERE name = 'a'`); !errors.As(err, &held) || !held.Since.Equal(since.Add(-time.Minute)) {
				t.Errorf("one behind it was told %v, want that it is held since %v, less a minute", err, since)
			}
			eventually(t, "it has its TTL of 20 s", func() bool { return time.Until(got.Deadline()) > 15*time.Second })
			stillHeld(t, d, got)
			release(t, got)
			d.WaitFor(t, `SELECT NOT EXISTS (SELECT FROM pglock.waits)`)
		})
	}
}

// Half of the time may be over: it asks, and is told what is left.
func TestWhoMayHaveHeardTooLateAsks(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	l := take(t, client(t, d), "a", pglock.TTL(30*time.Second))
	c, asks, _ := heir(t, d)
	pglock.BequestsLast(c, 20*time.Second)
	waiting := placed(soon(t), t, d, c)
	pglock.Forward(c, 11*time.Second)
	asks.Stall(pgtest.ToServer)
	release(t, l)
	d.Age(t, "a", -time.Minute)
	eventually(t, "it asks", func() bool { return pglock.IsAsking(c, "a") })
	asks.Resume()
	got := granted(t, waiting)
	stillHeld(t, d, got)
	release(t, got)
}

// Who asks just then goes by the answer: what it asks must not reach the database after it has used the lock.
func TestWhoHearsWhileItAsksWaitsForTheAnswer(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]pglock.Option{"first come": nil, "fair": {pglock.Fair()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			l := take(t, client(t, d), "a", pglock.TTL(30*time.Second))
			c, asks, _ := heir(t, d)
			pglock.AsksEvery(c, 100*time.Millisecond)
			pglock.BequestsLast(c, 20*time.Second)
			waiting := placed(soon(t), t, d, c, opts...)
			asks.Stall(pgtest.ToServer)
			eventually(t, "it asks", func() bool { return pglock.IsAsking(c, "a") })
			release(t, l)
			d.Age(t, "a", -time.Minute)
			eventually(t, "it hears", func() bool { return pglock.IsWoken(c, "a") })
			select {
			case got := <-waiting:
				t.Errorf("it has not waited for the answer: %+v", got)
			default:
				asks.Resume()
				got := granted(t, waiting)
				stillHeld(t, d, got)
				release(t, got)
			}
		})
	}
}

// The commit of the release takes longer than what it has granted lasts, as where it waits for a standby. Meanwhile the waiter asks, and is
// told that it has to wait still.
func TestAGrantWhoseCommitTookTooLongIsNone(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]pglock.Option{"first come": nil, "fair": {pglock.Fair()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			take(t, client(t, d), "a", pglock.TTL(30*time.Second))
			c, _, _ := heir(t, d)
			pglock.AsksEvery(c, 400*time.Millisecond)
			waiting := placed(slow(t), t, d, c, opts...)
			tx, err := d.Conn(t).Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, sql := range []string{
				`SELECT pglock.release(ARRAY['a'], ARRAY[acquisition]) FROM pglock.leases WHERE name = 'a'`,
				`UPDATE pglock.leases SET expires_at = clock_timestamp() WHERE name = 'a' AND owner = 'heir'`, // three seconds later
			} {
				if _, err := tx.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			pglock.Forward(c, 3*time.Second)
			eventually(t, "it asks", func() bool { return pglock.IsAsking(c, "a") })
			eventually(t, "it is told to wait", func() bool { return pglock.IsPlaced(c, "a") })

			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}

			got := granted(t, waiting)
			stillHeld(t, d, got)
			release(t, got)
		})
	}
}

// A pause of the process between two looks at the clock, however long, does not make it trust a lease for longer.
func TestABequestIsNotTrustedForLongerThanItLasts(t *testing.T) {
	t.Parallel()
	if beyond := pglock.Inherited(client(t, pgtest.DB(t))); beyond > 0 {
		t.Errorf("it is trusted for %v longer than it lasts", beyond)
	}
}

// A notification that is not of the acquisition which waits, or that cannot be read, grants nothing.
func TestANotificationOfAnotherGrantIsNone(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	l := take(t, client(t, d), "a", pglock.TTL(30*time.Second))
	c, _, _ := heir(t, d)
	pglock.AsksEvery(c, 100*time.Millisecond)
	waiting := acquiring(slow(t), c, "a")
	waits(t, d, 1)
	for _, said := range []string{
		"gen_random_uuid(), l.token + 1, 0", "'x', l.token + 1, 0", "w.acquisition, '', 0", "w.acquisition, l.token + 1, 'x'", "w.acquisition, l.token + 1",
		"w.acquisition, l.token + 1, 0, 0",
	} {
		eventually(t, "it was told to wait", func() bool { return pglock.IsPlaced(c, "a") })
		d.Exec(t, `SELECT pg_notify('pglock_' || w.client, concat_ws(',', w.wait, `+said+`) || ' a') FROM pglock.waits w, pglock.leases l WHERE l.name = w.name`)
	}
	d.Exec(t, `SELECT pg_notify('pglock_' || client, 'x a'), pg_notify('pglock_' || client, ''), pg_notify('pglock_' || client, wait::text) FROM pglock.waits`)
	release(t, l)
	got := granted(t, waiting)
	stillHeld(t, d, got)
	release(t, got)
}

// What such a lease would lose: it is only woken.
func TestAReleaseOnlyWakesWhoeverAsksForMore(t *testing.T) {
	t.Parallel()
	for name, opt := range map[string]pglock.Option{
		"HoldAtLeast": pglock.HoldAtLeast(time.Hour), "LockDelay": pglock.LockDelay(time.Hour), "Metadata": pglock.Metadata("x"), "Shared": pglock.Shared(),
		"NoRenewal": pglock.NoRenewal(), "MaxHold": pglock.MaxHold(time.Hour), "a short TTL": pglock.TTL(499 * time.Millisecond),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			l := take(t, client(t, d), "a", pglock.TTL(30*time.Second))
			c, p, _ := heir(t, d)
			waiting := acquiring(soon(t), c, "a", opt)
			d.WaitFor(t, `SELECT EXISTS (SELECT FROM pglock.waits)`)
			p.Stall(pgtest.ToServer)
			release(t, l)
			if who := ownerOfA(t, d); who != "" {
				t.Errorf("%q holds the lock, want nobody", who)
			}
			p.Resume()
			release(t, granted(t, waiting))
		})
	}
}

// A process that does not come for the lock has lost its turn, and nothing else: it goes on waiting, and asks anew.
func TestALockThatIsNotFetchedIsFree(t *testing.T) {
	t.Parallel()
	for _, taker := range []string{"another", "nobody"} {
		t.Run("taken by "+taker, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			l := take(t, client(t, d), "a", pglock.TTL(30*time.Second))
			c, p, _ := heir(t, d)
			pglock.BequestsLast(c, 0)
			late := acquiring(slow(t), c, "a")
			waits(t, d, 1)
			p.Stall(pgtest.ToServer)
			release(t, l)
			d.Age(t, "a", 3*time.Second)
			var other *pglock.Lease
			if taker == "another" {
				other = take(t, client(t, d), "a")
			}
			before := pgtest.Query[int64](t, d, `SELECT token FROM pglock.leases WHERE name = 'a'`)
			p.Resume()
			if other != nil {
				stillHeld(t, d, other)
				waits(t, d, 1)
				release(t, other)
			}
			got := granted(t, late)
			if int64(got.Token()) <= before {
				t.Errorf("token %d after %d", got.Token(), before)
			}
			release(t, got)
		})
	}
}

// A waiter gives up when the lock has been granted to it, and it does not know: the lock goes to the next one, in its own process too.
func TestALockThatWasGrantedToOneWhoGaveUpGoesOn(t *testing.T) {
	t.Parallel()
	for _, next := range []string{"in its process", "in another", "nobody"} {
		t.Run(next, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			l := take(t, client(t, d), "a", pglock.TTL(30*time.Second))
			c, _, hears := heir(t, d)
			ctx, giveUp := context.WithCancel(t.Context())
			gone := acquiring(ctx, c, "a")
			waits(t, d, 1)
			var waiting <-chan acquired
			switch next {
			case "in its process":
				waiting = acquiring(soon(t), c, "a")
				queued(t, c, "a", 2)
			case "in another":
				waiting = acquiring(soon(t), attentive(t, d, d.URL, pglock.Config{}), "a")
				waits(t, d, 2)
			}
			hears.Stall(pgtest.ToClient)
			release(t, l)
			d.Age(t, "a", -time.Minute) // it does not run out here
			giveUp()
			wantErr(t, "giving up", happens(t, "it gives up", gone).err, context.Canceled)
			if waiting != nil {
				l := granted(t, waiting)
				stillHeld(t, d, l)
				release(t, l)
			}
			d.WaitFor(t, `SELECT NOT EXISTS (SELECT FROM pglock.leases WHERE name = 'a' AND expires_at > 'epoch')`)
			hears.Resume()
		})
	}
}

// The same while the release that grants it is at its commit: nothing is there yet to be given back.
func TestALockThatIsBeingGrantedToOneWhoGaveUpGoesOn(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	l := take(t, client(t, d), "a", pglock.TTL(30*time.Second))
	c, _, hears := heir(t, d)
	ctx, giveUp := context.WithCancel(t.Context())
	gone := acquiring(ctx, c, "a")
	waits(t, d, 1)
	d.Exec(t, `
		CREATE FUNCTION wait_for_the_test() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS $$
		BEGIN
			IF new.owner = 'heir' AND new.expires_at > clock_timestamp() THEN PERFORM pg_advisory_xact_lock_shared(1); END IF;
			RETURN NULL;
		END $$;
		CREATE CONSTRAINT TRIGGER wait_for_the_test AFTER UPDATE ON pglock.leases DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION wait_for_the_test()`)
	gate := d.Conn(t)
	if _, err := gate.Exec(t.Context(), `SELECT pg_advisory_lock(1)`); err != nil {
		t.Fatal(err)
	}
	released := async(func() error { return l.Release(soon(t)) })
	d.WaitFor(t, pgtest.Waiting)
	hears.Stall(pgtest.ToClient) // nor is it told of it
	before := pgtest.Query[time.Time](t, d, `SELECT clock_timestamp()`)

	giveUp()

	wantErr(t, "giving up", happens(t, "it gives up", gone).err, context.Canceled)
	eventually(t, "it asks for what it was granted, and finds nothing", func() bool {
		return pgtest.Query[bool](t, d, `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database()
			AND query LIKE '%.release(%' AND state = 'idle' AND state_change > $1`, before)
	})
	if _, err := gate.Exec(t.Context(), `SELECT pg_advisory_unlock(1)`); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "Release", happens(t, "the release", released), nil)
	d.WaitFor(t, `SELECT NOT EXISTS (SELECT FROM pglock.leases WHERE name = 'a' AND expires_at > 'epoch')`)
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pglock.leases WHERE name = 'a' AND owner = 'heir' AND expires_at = 'epoch'`); n != 1 {
		t.Error("it was never granted to who gave up")
	}
}

// The answer to the fetching is lost. It is asked for once more, and the lease is good.
func TestAFetchWhoseAnswerIsLostIsRepeated(t *testing.T) {
	t.Parallel()
	for _, moment := range []string{"marking", "fetching"} {
		t.Run(moment, func(t *testing.T) {
			t.Parallel()
			d := pgtest.DB(t)
			l := take(t, client(t, d), "a", pglock.TTL(30*time.Second))
			c, p, _ := heir(t, d)
			pglock.BequestsLast(c, 0)
			var lost <-chan struct{}
			if moment == "marking" {
				lost = p.LoseNextReply("heir")
			}
			waiting := acquiring(soon(t), c, "a")
			waits(t, d, 1)
			eventually(t, "it was told", func() bool { return pglock.Refused(c, "a") })
			if moment == "fetching" {
				lost = p.LoseNextReply("heir")
			}
			release(t, l)
			happens(t, "an answer is lost", lost)
			got := granted(t, waiting)
			stillHeld(t, d, got)
			release(t, got)
		})
	}
}

// Many processes, one lock, sections that do nothing: each is served in its turn, and nobody has it beside another.
func TestProcessesTakeTurnsWithoutBeingFair(t *testing.T) {
	t.Parallel()
	const processes, turns = 5, 30
	d := pgtest.DB(t)
	ctx, enough := context.WithCancel(t.Context())
	defer enough()
	grants, inside := [processes]counter{}, make(chan string, 1)
	var all []<-chan error
	for i := range processes {
		c := attentive(t, d, d.URL, pglock.Config{})
		all = append(all, async(func() error {
			for ctx.Err() == nil {
				err := c.Do(ctx, "a", func(context.Context, *pglock.Lease) error {
					select {
					case inside <- fmt.Sprint(i):
						grants[i].add()
						<-inside
						return nil
					default:
						return fmt.Errorf("%d got in beside %s", i, <-inside)
					}
				})
				if err != nil && ctx.Err() == nil {
					return err
				}
			}
			return nil
		}))
	}
	least := func() int {
		n := grants[0].get()
		for i := range grants {
			n = min(n, grants[i].get())
		}
		return n
	}
	eventually(t, "each has its turns", func() bool { return least() >= turns })
	before := [processes]int{}
	for i := range grants {
		before[i] = grants[i].get()
	}
	base := least()
	eventually(t, "each has as many again", func() bool { return least() >= base+turns })
	enough()
	for i, a := range all {
		wantErr(t, "Do", happens(t, "it ends", a), nil)
		if n := grants[i].get() - before[i]; n > 10*turns {
			t.Errorf("process %d had %d turns while another had some %d", i, n, turns)
		}
	}
}

// What a release has granted is fetched, and the answer comes too late to trust it, so it is given back; and that is held up. The
// waiter waits on, for another acquisition: what is given back must not be the lease that it is granted next.
func TestWhatWasFetchedTooLateIsGivenBackAndNotTheNextLease(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	l := take(t, client(t, d), "a", pglock.TTL(30*time.Second))
	c, p, _ := heir(t, d)
	pglock.BequestsLast(c, 0)
	waiting := acquiring(slow(t), c, "a")
	waits(t, d, 1)
	d.Exec(t, `CREATE TABLE held_up (); INSERT INTO held_up DEFAULT VALUES; CREATE TABLE given_back (acquisition uuid);
		ALTER FUNCTION pglock.release(text[], uuid[], boolean, boolean[], boolean, int[]) RENAME TO really_release;
		CREATE FUNCTION pglock.release(names text[], acquisitions uuid[], deferred boolean, unheld boolean[], rouse boolean, slots int[])
		RETURNS TABLE (ord int, status text) LANGUAGE plpgsql AS $$
		BEGIN
			IF unheld[1] THEN
				IF EXISTS (SELECT FROM public.held_up) THEN RAISE lock_not_available; END IF;
				INSERT INTO public.given_back SELECT unnest(acquisitions);
			END IF;
			RETURN QUERY SELECT * FROM pglock.really_release(names, acquisitions, deferred, unheld, rouse, slots);
		END $$; GRANT ALL ON held_up, given_back TO PUBLIC`)
	p.Stall(pgtest.ToClient)
	release(t, l)
	d.WaitFor(t, `SELECT EXISTS (SELECT FROM pg_stat_activity, pglock.leases WHERE datname = current_database() AND query LIKE '%.acquire(%'
		AND state = 'idle' AND name = 'a' AND query_start > granted_at)`)
	d.WaitFor(t, `SELECT expires_at < clock_timestamp() FROM pglock.leases WHERE name = 'a'`)
	other := take(t, client(t, d), "a", pglock.TTL(30*time.Second))
	p.Resume()
	waits(t, d, 1)
	release(t, other)
	got := granted(t, waiting)

	d.Exec(t, `DELETE FROM held_up`)

	d.WaitFor(t, `SELECT EXISTS (SELECT FROM given_back)`)
	stillHeld(t, d, got)
	release(t, got)
}

// A waiter gives up before its mark was sent. The mark must not outlive it: the next release would grant the lock to nobody.
func TestAMarkOfOneWhoGaveUpBeforeItWasSentIsNotLeft(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	l := take(t, client(t, d), "a", pglock.TTL(30*time.Second))
	c, p, _ := heir(t, d)
	p.Stall(pgtest.ToClient)
	busy := acquiring(soon(t), c, "b")
	d.WaitFor(t, `SELECT EXISTS (SELECT FROM pglock.leases WHERE name = 'b' AND expires_at > 'epoch')`)
	ctx, giveUp := context.WithCancel(t.Context())
	gone := acquiring(ctx, c, "a", pglock.Fair())
	eventually(t, "its mark is to be sent", func() bool { return pglock.Notes(c) == 1 })
	giveUp()
	wantErr(t, "giving up", happens(t, "it gives up", gone).err, context.Canceled)

	p.Resume()

	release(t, granted(t, busy))
	release(t, take(t, c, "b")) // the notes went before
	if n := pgtest.Query[int](t, d, `SELECT count(*) FROM pglock.waits`); n != 0 {
		t.Errorf("%d marks are left", n)
	}
	release(t, l)
	if who := ownerOfA(t, d); who != "" {
		t.Errorf("%q holds the lock, want nobody", who)
	}
}

// Processes that hear hand the lock to each other, and never leave it free. One that hears nothing is handed it too, in the end.
func TestAProcessThatHearsNothingHasItsTurn(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	silent := pgtest.NewProxy(t, d)
	silent.Refuse(true)
	ctx, enough := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer enough()
	grants := [3]counter{}
	pool := d.Pool(t)
	f := func(ctx context.Context) { // until another process waits, so that the release hands the lock to it
		for marked := false; !marked && ctx.Err() == nil; {
			pool.QueryRow(ctx, `SELECT count(*) > 0 FROM pglock.waits WHERE name = 'a'`).Scan(&marked) //nolint:errcheck // it asks again
		}
	}
	for i := range grants {
		c := open(t, d.URL, pglock.Config{ListenURL: silent.URL()})
		pglock.MarkedWhenDeafAfter(c, 100*time.Millisecond)
		if i > 0 {
			c = attentive(t, d, d.URL, pglock.Config{})
		}
		all.Go(func() {
			for ctx.Err() == nil {
				c.Do(ctx, "a", func(ctx context.Context, _ *pglock.Lease) error { grants[i].add(); f(ctx); return nil }) //nolint:errcheck // it ends with ctx
			}
		})
	}
	eventually(t, "each has its turns", func() bool { return grants[0].get() > 5 && grants[1].get() > 5 && grants[2].get() > 5 })
}
