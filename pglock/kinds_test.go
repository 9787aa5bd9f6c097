package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

func TestReadersShareAndAWriterIsAlone(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	a, b := client(t, d), client(t, d)
	one, two := take(t, a, "doc", pglock.Shared()), take(t, b, "doc", pglock.Shared())
	if one.Token() >= two.Token() || one.Grant().Slot == two.Grant().Slot || one.Grant().Slot < 1 {
		t.Errorf("two readers: %+v and %+v", one.Grant(), two.Grant())
	}
	wantHeld(t, b, "doc")
	release(t, one)
	wantHeld(t, a, "doc")
	release(t, two)

	w := take(t, a, "doc")
	if w.Token() <= two.Token() {
		t.Errorf("the writer has token %d after %d", w.Token(), two.Token())
	}
	wantHeld(t, b, "doc", pglock.Shared())
	wantHeld(t, b, "doc")
	release(t, w)
	take(t, b, "doc", pglock.Shared())
}

func TestARenewedReaderKeepsTheWriterOutAndALapsedOneDoesNot(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	a, b := client(t, d), client(t, d)
	r, forgotten := take(t, a, "doc", pglock.Shared()), take(t, a, "doc", pglock.Shared(), pglock.NoRenewal())
	wantErr(t, "Renew", r.Renew(soon(t)), nil)
	age(t, d, "doc", forgotten.Grant().Slot)
	wantHeld(t, b, "doc")
	release(t, r)
	take(t, b, "doc")
	wantErr(t, "Renew of a reader that lapsed", forgotten.Renew(soon(t)), pglock.ErrLost)
}

// age lets a lease of one slot run out in the database.
func age(t *testing.T, d *pgtest.Database, name string, slot int) {
	t.Helper()
	d.Exec(t, `UPDATE pglock.leases SET expires_at = clock_timestamp() - interval '1 ms' WHERE name = $1 AND slot = $2`, name, slot)
}

func wantHeld(t *testing.T, c *pglock.Client, name string, opts ...pglock.Option) {
	t.Helper()
	l, err := c.TryAcquire(soon(t), name, opts...)
	var held *pglock.HeldError
	if !errors.As(err, &held) || held.Name != name {
		t.Errorf("TryAcquire %q: %v, %v, want it held", name, l, err)
	}
}

// Readers that overlap for ever would keep a writer out, if it had no place before those that come later. They go on once it is done,
// or gone.
func TestAWaitingWriterIsNotStarved(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	a, b, c := client(t, d), client(t, d), client(t, d)
	r := take(t, a, "doc", pglock.Shared())

	giveUp, cancel := context.WithCancel(t.Context())
	gone := acquiring(giveUp, b, "doc")
	until(t, d, "the writer to be marked", `SELECT count(*) = 1 FROM pglock.waits WHERE name = 'doc' AND kind = 0`)
	wantHeld(t, c, "doc", pglock.Shared())
	wantHeld(t, a, "doc", pglock.Shared())
	late := acquiring(slow(t), c, "doc", pglock.Shared())
	until(t, d, "the reader to be marked", `SELECT count(*) = 1 FROM pglock.waits WHERE name = 'doc' AND kind = -1`)
	cancel()
	wantErr(t, "the writer that gave up", (<-gone).err, context.Canceled)
	passed := <-late // well before it asks by itself
	wantErr(t, "the reader behind a writer that gave up", passed.err, nil)

	writing := acquiring(slow(t), b, "doc")
	until(t, d, "the writer to be marked", `SELECT count(*) = 1 FROM pglock.waits WHERE name = 'doc' AND kind = 0`)
	readers := []<-chan acquired{acquiring(slow(t), a, "doc", pglock.Shared()), acquiring(slow(t), c, "doc", pglock.Shared())}
	until(t, d, "the readers to be marked", `SELECT count(*) = 2 FROM pglock.waits WHERE name = 'doc' AND kind = -1`)
	release(t, r)
	release(t, passed.lease)
	w := <-writing
	wantErr(t, "the writer", w.err, nil)
	for _, reader := range readers {
		select {
		case got := <-reader:
			t.Errorf("a reader beside the writer: %v, %v", got.lease, got.err)
		default:
		}
	}
	release(t, w.lease)
	for _, reader := range readers {
		wantErr(t, "a reader after the writer", (<-reader).err, nil)
	}
}

func TestAReaderCannotBecomeAWriter(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := client(t, d)
	err := c.Do(slow(t), "doc", func(ctx context.Context, l *pglock.Lease) error {
		_, err := c.Acquire(ctx, "doc")
		return err
	}, pglock.Shared())
	wantErr(t, "an upgrade", err, pglock.ErrReentrant)
	if !strings.Contains(err.Error(), "cannot become") {
		t.Errorf("no reason: %v", err)
	}
}

func TestWhatTheCallerHoldsIsRefusedAndNotWaitedFor(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c, other := client(t, d), client(t, d)
	err := c.DoAll(slow(t), []string{"a", "b"}, func(ctx context.Context, l *pglock.Lease) error {
		for _, c := range []*pglock.Client{c, other} {
			_, err := c.Acquire(ctx, "b")
			wantErr(t, "Acquire", err, pglock.ErrReentrant)
			_, err = c.TryAcquire(ctx, "a")
			wantErr(t, "TryAcquire", err, pglock.ErrReentrant)
			wantErr(t, "Do", c.Do(ctx, "a", func(context.Context, *pglock.Lease) error { return nil }), pglock.ErrReentrant)
		}
		return c.Do(ctx, "c", func(ctx context.Context, inner *pglock.Lease) error {
			_, err := c.Acquire(ctx, "a")
			wantErr(t, "from further inside", err, pglock.ErrReentrant)
			release(t, l)
			again, err := c.Acquire(context.WithoutCancel(ctx), "a") // it is free now
			wantErr(t, "after the release", err, nil)
			return again.Release(soon(t))
		})
	})
	wantErr(t, "Do", err, nil)
}

func TestASemaphoreHasNoMoreHoldersThanPermits(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	const permits = 3
	clients := []*pglock.Client{client(t, d), client(t, d)}
	var inside, most atomic.Int32
	var all sync.WaitGroup
	slots := make([]atomic.Int32, permits+1)
	for i := range 12 {
		all.Go(func() {
			for range 10 {
				err := clients[i%len(clients)].Do(slow(t), "workers", func(ctx context.Context, l *pglock.Lease) error {
					n := inside.Add(1)
					defer inside.Add(-1)
					for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					s := &slots[l.Grant().Slot]
					if !s.CompareAndSwap(0, 1) {
						return fmt.Errorf("two holders of slot %d", l.Grant().Slot)
					}
					defer s.Store(0)
					return nil
				}, pglock.Permits(permits))
				wantErr(t, "Do", err, nil)
			}
		})
	}
	all.Wait()
	if m := most.Load(); m > permits {
		t.Errorf("%d holders of %d permits", m, permits)
	}
	for range permits {
		take(t, clients[0], "workers", pglock.Permits(permits))
	}
	_, err := clients[1].TryAcquire(soon(t), "workers", pglock.Permits(permits))
	full, ok := errors.AsType[*pglock.HeldError](err)
	if !ok || full.Permits != permits || !strings.Contains(err.Error(), `all 3 permits of "workers" are taken`) {
		t.Errorf("TryAcquire of a full semaphore: %v", err)
	}
	held, err := clients[0].Holders(soon(t), "workers")
	if err != nil || len(held) != permits {
		t.Errorf("Holders: %v, %v", held, err)
	}
}

func TestANameIsOneKindWhileSomebodyHoldsIt(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c, other := client(t, d), client(t, d)
	kinds := []struct {
		is   string
		opts []pglock.Option
	}{
		{"without permits", nil},
		{"without permits", []pglock.Option{pglock.Shared()}},
		{"3 permits", []pglock.Option{pglock.Permits(3)}},
		{"5 permits", []pglock.Option{pglock.Permits(5)}},
	}
	for _, held := range kinds {
		for _, asked := range kinds {
			l := take(t, c, "n", held.opts...)
			if held.is != asked.is {
				_, tried := other.TryAcquire(soon(t), "n", asked.opts...)
				_, waited := other.Acquire(soon(t), "n", asked.opts...)
				_, own := c.Acquire(soon(t), "n", asked.opts...)
				for _, err := range []error{tried, waited, own} {
					var kind *pglock.OtherKindError
					if !errors.As(err, &kind) || !strings.Contains(err.Error(), held.is) || !strings.Contains(err.Error(), asked.is) {
						t.Errorf("%s, asked for as one %s: %v", held.is, asked.is, err)
					}
				}
			}
			release(t, l)
			release(t, take(t, other, "n", asked.opts...)) // it becomes that, when nobody holds it
		}
	}
}

func TestSeveralNamesAreGrantedTogetherOrNotAtAll(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	a, b := client(t, d), client(t, d)
	l, err := a.AcquireAll(slow(t), []string{"y", "x", "z"})
	wantErr(t, "AcquireAll", err, nil)
	for _, name := range []string{"x", "y", "z"} {
		wantHeld(t, b, name)
		if g := l.GrantOf(name); g.Lock != name || g.Token != l.Token() {
			t.Errorf("GrantOf(%q) = %+v", name, g)
		}
	}
	if l.Grant().Lock != "y" || l.GrantOf("other").Token != 0 {
		t.Errorf("Grant = %+v, of another name %+v", l.Grant(), l.GrantOf("other"))
	}
	_, err = b.TryAcquireAll(soon(t), []string{"free", "z"})
	var held *pglock.HeldError
	if !errors.As(err, &held) || held.Name != "z" {
		t.Errorf("TryAcquireAll: %v", err)
	}
	take(t, a, "free") // nothing of it was kept
	wantErr(t, "Renew", l.Renew(soon(t)), nil)
	release(t, l)
	for _, name := range []string{"x", "y", "z"} {
		take(t, b, name)
	}
	for says, names := range map[string][]string{
		"0 names": {}, `"a" is there twice, as name 1 and 3 of 3`: {"a", "b", "a"}, "it is empty (name 2 of 2)": {"a", ""}, "1001 names": make([]string, 1001),
	} {
		_, err := a.AcquireAll(soon(t), names)
		wantErr(t, fmt.Sprintf("AcquireAll of %d names", len(names)), err, pglock.ErrInvalidName)
		if !strings.Contains(err.Error(), says) {
			t.Errorf("AcquireAll of %d names: %v, want %s", len(names), err, says)
		}
	}
}

func TestOneNameLostIsAllLost(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	a, b := client(t, d), client(t, d)
	l, err := a.AcquireAll(slow(t), []string{"x", "y"})
	wantErr(t, "AcquireAll", err, nil)
	age(t, d, "y", 0)
	take(t, b, "y")
	wantErr(t, "Renew", l.Renew(soon(t)), pglock.ErrLost)
	happens(t, "it is lost", l.Done())
	wantErr(t, "Release", l.Release(soon(t)), pglock.ErrLost)
	got := <-acquiring(slow(t), b, "x") // the rest of it was given back
	wantErr(t, "the other name", got.err, nil)
}

// Whoever waits for several names holds none meanwhile, so no order of names can make two wait for each other.
func TestNamesInAnyOrderDoNotDeadlock(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	clients := []*pglock.Client{client(t, d), client(t, d), client(t, d)}
	orders := [][]string{{"a", "b", "c"}, {"c", "b", "a"}, {"b", "c"}, {"c", "a"}, {"b"}}
	var inside [3]atomic.Int32
	var all sync.WaitGroup
	for i := range 9 {
		all.Go(func() {
			for turn := range 8 {
				names := orders[(i+turn)%len(orders)]
				err := clients[i%len(clients)].DoAll(slow(t), names, func(context.Context, *pglock.Lease) error {
					for _, n := range names {
						if !inside[n[0]-'a'].CompareAndSwap(0, 1) {
							t.Errorf("two hold %s", n)
						}
					}
					for _, n := range names {
						inside[n[0]-'a'].Store(0)
					}
					return nil
				})
				wantErr(t, "DoAll", err, nil)
			}
		})
	}
	all.Wait()
}

func TestLockDelayFollowsACrashAndNoRelease(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	a, b := client(t, d), client(t, d)
	l := take(t, a, "a", pglock.LockDelay(time.Minute))
	release(t, l)
	l = take(t, b, "a", pglock.LockDelay(time.Minute), pglock.NoRenewal())
	age(t, d, "a", 0)
	_, err := a.TryAcquire(soon(t), "a")
	var held *pglock.HeldError
	if !errors.As(err, &held) || !held.Over || held.Remaining < 30*time.Second || held.Remaining > time.Minute {
		t.Errorf("after a crash: %v", err)
	}
	s, err := a.Inspect(soon(t), "a")
	if err != nil || s.Held || s.FreeIn < 30*time.Second {
		t.Errorf("Inspect: %+v, %v", s, err)
	}
	d.Exec(t, `UPDATE pglock.leases SET expires_at = expires_at - interval '1 minute'`)
	take(t, a, "a")
	for _, bad := range []time.Duration{0, -1, 25 * time.Hour} {
		_, err := a.TryAcquire(soon(t), "a", pglock.LockDelay(bad))
		wantErr(t, "a bad LockDelay", err, pglock.ErrInvalidOption)
	}
	_ = l
}

func TestAForgottenLeaseEndsWithItsMaxHold(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	a := client(t, d)
	l := take(t, a, "a", pglock.TTL(time.Second), pglock.MaxHold(1500*time.Millisecond))
	begin := time.Now()
	happens(t, "its end", l.Done())
	var lost *pglock.LostError
	if !errors.As(l.Err(), &lost) || time.Since(begin) > 2*patience { // the cause may be a renewal that was late
		t.Errorf("it ended after %v with %v", time.Since(begin), l.Err())
	}
	got := <-acquiring(slow(t), client(t, d), "a")
	wantErr(t, "the next one", got.err, nil)
	_, err := a.TryAcquire(soon(t), "b", pglock.TTL(2*time.Second), pglock.MaxHold(time.Second))
	wantErr(t, "a MaxHold below the TTL", err, pglock.ErrInvalidOption)
}

func TestRevokeEndsALeaseAndFencesItsHolder(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	a, operator := client(t, d), client(t, d)
	for _, kind := range [][]pglock.Option{nil, {pglock.Shared()}, {pglock.Permits(2)}} {
		l := take(t, a, "a", append(kind, pglock.LockDelay(time.Hour))...)
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() {
			_, err := operator.Revoke(ctx, "a", time.Millisecond)
			first <- err
		}()
		until(t, d, "the revocation", `SELECT count(*) = 1 FROM pglock.leases WHERE name = 'a' AND revoked IS NOT NULL AND expires_at > clock_timestamp()`)
		wantErr(t, "Renew of what was revoked", l.Renew(soon(t)), pglock.ErrLost)
		var lost *pglock.LostError
		if !errors.As(context.Cause(l.Context()), &lost) || lost.Cause != pglock.Revoked {
			t.Errorf("it ended with %v", context.Cause(l.Context()))
		}
		wantErr(t, "Release of what was revoked", l.Release(soon(t)), pglock.ErrLost)
		if _, err := a.TryAcquire(soon(t), "a"); !errors.Is(err, pglock.ErrHeld) && !errors.Is(err, pglock.ErrOtherKind) {
			t.Errorf("before the lease would have run out: %v", err)
		}
		cancel()
		if err := <-first; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "call it again") {
			t.Errorf("Revoke that did not wait: %v", err)
		}

		d.Exec(t, `UPDATE pglock.leases SET expires_at = clock_timestamp() - interval '1 ms', not_before = 'epoch' WHERE revoked IS NOT NULL`)
		token, err := operator.Revoke(soon(t), "a", time.Millisecond)
		wantErr(t, "Revoke", err, nil)
		if token <= l.Token() {
			t.Errorf("Revoke answers token %d after %d", token, l.Token())
		}
		err = fence.HeldTx(soon(t), d.Pool(t), l.Grant(), func(context.Context, pgx.Tx) error { return nil })
		wantErr(t, "a write of the victim", err, fence.ErrStale)
		if s, err := a.Inspect(soon(t), "a"); err != nil || s.FreeIn < 30*time.Minute {
			t.Errorf("its LockDelay is gone: %+v, %v", s, err)
		}
		d.Exec(t, `DELETE FROM pglock.leases`)
	}
	_, err := operator.Revoke(soon(t), "never", 0)
	wantErr(t, "Revoke of what nobody had", err, fence.ErrNeverGranted)
	_, err = operator.Revoke(soon(t), "a", -1)
	wantErr(t, "a negative grace", err, pglock.ErrInvalidOption)
}

// The holder renews seldom, and yet is told at once.
func TestAHolderThatListensHearsOfARevocation(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	a := open(t, d.URL, pglock.Config{TTL: 30 * time.Second, RenewEvery: 13 * time.Second})
	operator := client(t, d)
	take(t, operator, "b")
	waiting, cancel := context.WithCancel(t.Context())
	waiter := acquiring(waiting, a, "b") // so that it listens
	until(t, d, "the client to listen", `SELECT count(*) = 1 FROM pglock.waits`)
	for name, opts := range map[string][]pglock.Option{"a": nil, "read": {pglock.Shared()}} {
		l := take(t, a, name, opts...)
		ctx, stop := context.WithCancel(t.Context())
		revoked := async(func() error { _, err := operator.Revoke(ctx, name, 0); return err })
		happens(t, "the holder of "+name+" is told", l.Done())
		wantLoss(t, l, pglock.Revoked)
		stop()
		wantErr(t, "Revoke that did not wait", happens(t, "Revoke ends", revoked), context.Canceled)
	}
	cancel()
	<-waiter
}

// Anybody can send a hint. It renews nothing that is not renewed anyway.
func TestAHintProlongsNoLease(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	c := attentive(t, d, d.URL, pglock.Config{TTL: 30 * time.Second, RenewEvery: 13 * time.Second})
	forgotten, renewed := take(t, c, "forgotten", pglock.NoRenewal()), take(t, c, "renewed")
	const expiry = `SELECT expires_at::text FROM pglock.leases WHERE name = '%s'`
	before := pgtest.Query[string](t, d, fmt.Sprintf(expiry, "forgotten"))
	until(t, d, "the hint is taken", fmt.Sprintf(`WITH hints AS MATERIALIZED (SELECT pg_notify('pglock_revoked', '%d'), pg_notify('pglock_revoked', '%d'))
		SELECT expires_at > granted_at + interval '30 s' FROM hints, pglock.leases WHERE name = 'renewed'`, forgotten.Token(), renewed.Token()))
	if after := pgtest.Query[string](t, d, fmt.Sprintf(expiry, "forgotten")); after != before {
		t.Errorf("a hint has prolonged a lease from %s to %s", before, after)
	}
}

// With polling turned off, a wake-up that is lost is a wait for the end of somebody's lease.
func TestNoWakeUpForAPermitIsLost(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	var all sync.WaitGroup
	for range 2 {
		c := attentive(t, d, d.URL, pglock.Config{TTL: 30 * time.Second})
		for range 4 {
			all.Go(func() {
				for range pgtest.Rounds(50, 1000) {
					if err := c.Do(soon(t), "jobs", func(context.Context, *pglock.Lease) error { return nil }, pglock.Permits(2)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	all.Wait()
}

// A writer gives up, in the same process as one reader that waits behind it, and in another than one more.
func TestReadersBehindAWriterThatGivesUpGoOn(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	a, b := attentive(t, d, d.URL, pglock.Config{TTL: 30 * time.Second}), attentive(t, d, d.URL, pglock.Config{TTL: 30 * time.Second})
	take(t, client(t, d), "doc", pglock.Shared())
	ctx, giveUp := context.WithCancel(t.Context())
	writer := acquiring(ctx, a, "doc")
	until(t, d, "the writer to be marked", `SELECT count(*) = 1 FROM pglock.waits WHERE name = 'doc' AND kind = 0`)
	same := acquiring(soon(t), a, "doc", pglock.Shared())
	queued(t, a, "doc", 2)
	other := acquiring(soon(t), b, "doc", pglock.Shared())
	until(t, d, "the reader to be marked", `SELECT count(*) = 1 FROM pglock.waits WHERE name = 'doc' AND kind = -1`)
	giveUp()
	wantErr(t, "the writer", happens(t, "it gives up", writer).err, context.Canceled)
	granted(t, same)
	granted(t, other)
}

// Where no notification comes, the mark still gives a writer its turn.
func TestAWriterThatHearsNothingIsNotStarved(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	deaf := open(t, d.URL, pglock.Config{ListenURL: "postgres://nobody@127.0.0.1:1/none"})
	pglock.MarkedWhenDeafAfter(deaf, time.Hour) // it is for another reason
	r := take(t, client(t, d), "doc", pglock.Shared())
	writer := acquiring(soon(t), deaf, "doc")
	until(t, d, "the writer to be marked", `SELECT count(*) = 1 FROM pglock.waits WHERE name = 'doc' AND kind = 0`)
	wantHeld(t, client(t, d), "doc", pglock.Shared())
	release(t, r)
	granted(t, writer)
}

// Two take the same lock away: each waits for as long as the holder may trust its lease, and has a later token.
func TestTwoRevocationsAreNoShorterThanOne(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	for _, kind := range [][]pglock.Option{nil, {pglock.Shared()}, {pglock.Permits(2)}} {
		l := take(t, client(t, d), "a", kind...)
		ask := func(id string, begin bool) (status string) {
			return pgtest.Query[string](t, d, fmt.Sprintf(`SELECT status FROM pglock.revoke('a', '%s', 'operator', 0, %v)`, id, begin))
		}
		const first, second = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
		for range 2 {
			for _, id := range []string{first, second} {
				for _, begin := range []bool{true, false} {
					if got := ask(id, begin); got != "revoked" {
						t.Errorf("%s, begin %v: %s while the lease lives, want revoked", id, begin, got)
					}
				}
			}
		}
		wantErr(t, "Renew", l.Renew(soon(t)), pglock.ErrLost)
		wantLoss(t, l, pglock.Revoked)
		if len(kind) > 0 {
			wantHeld(t, client(t, d), "a", kind...) // there is room, but for the revocation
		}
		d.Exec(t, `UPDATE pglock.leases SET expires_at = clock_timestamp() - interval '1 ms', not_before = 'epoch' WHERE revoked IS NOT NULL`)
		for _, id := range []string{first, second} {
			if got := ask(id, false); got != "done" {
				t.Errorf("%s: %s after the lease, want done", id, got)
			}
		}
		if pgtest.Query[int64](t, d, `SELECT max(token) FROM pglock.leases`) <= int64(l.Token()) {
			t.Error("no later token was drawn")
		}
		d.Exec(t, `DELETE FROM pglock.leases`)
	}
}

// And it listens because it has held a lease for a while.
func TestAClientThatHoldsForLongListens(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	a := open(t, d.URL, pglock.Config{TTL: 30 * time.Second, RenewEvery: 2500 * time.Millisecond})
	take(t, a, "a")
	until(t, d, "the client to listen", `SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN pglock_revoked%'`)
}

func TestOnlyTheOwnerRevokes(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	take(t, client(t, d), "a")
	role := d.Role(t)
	d.Exec(t, `SELECT pglock.grant_locker($1::regrole), pglock.grant_auditor($1::regrole)`, role)
	_, err := open(t, d.URLAs(role), pglock.Config{}).Revoke(soon(t), "a", 0)
	wantErr(t, "Revoke", err, pglock.ErrNotAllowed)
}

// until waits for what a query says.
func until(t *testing.T, d *pgtest.Database, what, sql string) {
	t.Helper()
	eventually(t, what, func() bool { return pgtest.Query[bool](t, d, sql) })
}
