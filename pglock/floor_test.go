package pglock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/fence"
	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// The lock service has lost its memory: what it protects has seen tokens that it has yet to hand out. Nothing is written under
// them, whichever fence it is, until its owner has raised the floor.
func TestATokenBehindWhatItProtectsIsRefusedUntilTheFloorIsRaised(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	d.Exec(t, `CREATE TABLE invoices (id int PRIMARY KEY, status text, fencing_token bigint)`)
	c := open(t, d.URL, pglock.Config{})
	pool := d.Pool(t)
	invoices := fence.Table{Name: "invoices", Key: []string{"id"}}
	paid := fence.Row{"id": 1, "status": "paid"}
	first := take(t, c, "billing")
	seen := first.Grant().Token + 1<<40
	d.Exec(t, `INSERT INTO invoices VALUES (1, 'open', $1); `, int64(seen))
	d.Exec(t, `INSERT INTO pglock.fences (relation, resource, name, slot, last_token) VALUES (0, 'ledger', 'billing', 0, $1)`, int64(seen))
	release(t, first)

	nothing := func(pgx.Tx) error { return nil }
	for name, write := range map[string]func(g fence.Grant) error{
		"row":      func(g fence.Grant) error { return invoices.Update(soon(t), pool, g, paid) },
		"resource": func(g fence.Grant) error { return fence.Tx(soon(t), pool, g, "ledger", nothing) },
	} {
		l := take(t, c, "billing")
		err := write(l.Grant())
		var stale *fence.StaleError
		if !errors.Is(err, fence.ErrBehind) || !errors.Is(err, fence.ErrStale) || !errors.As(err, &stale) || stale.LastToken != seen {
			t.Errorf("%s = %v, want ErrBehind with token %d", name, err, seen)
		}
		wantErr(t, "the lease", l.Err(), pglock.ErrLost)
		l.Release(soon(t))               //nolint:errcheck // it is lost
		d.Age(t, "billing", time.Minute) // and stays until it lapses
	}
	wantErr(t, "RaiseTokenFloor", c.RaiseTokenFloor(soon(t), seen), nil)
	l := take(t, c, "billing")
	if got := l.Grant().Token; got <= seen {
		t.Errorf("the next token is %d, want it above %d", got, seen)
	}
	wantErr(t, "row", invoices.Update(soon(t), pool, l.Grant(), paid), nil)
	wantErr(t, "resource", fence.Tx(soon(t), pool, l.Grant(), "ledger", nothing), nil)
	release(t, l)
}

func TestOnlyTheOwnerRaisesTheTokenFloor(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	role := d.Role(t)
	d.Exec(t, `SELECT pglock.grant_locker('`+role+`')`)
	c := open(t, d.URLAs(role), pglock.Config{})
	wantErr(t, "RaiseTokenFloor", c.RaiseTokenFloor(soon(t), 10), pglock.ErrNotAllowed)
	for _, floor := range []fence.Token{-1, 0, 6755399441055745, 1<<63 - 1} {
		wantErr(t, "RaiseTokenFloor", c.RaiseTokenFloor(soon(t), floor), pglock.ErrInvalidOption)
	}
	owner := open(t, d.URL, pglock.Config{})
	before := take(t, owner, "a")
	wantErr(t, "RaiseTokenFloor below", owner.RaiseTokenFloor(soon(t), 1), nil)
	wantErr(t, "Renew", before.Renew(soon(t)), nil)
	release(t, before)
	after := take(t, owner, "a")
	if after.Grant().Token <= before.Grant().Token {
		t.Errorf("token %d after %d", after.Grant().Token, before.Grant().Token)
	}
	release(t, after)
	wantErr(t, "Close", owner.Close(soon(t)), nil)
	wantErr(t, "RaiseTokenFloor", owner.RaiseTokenFloor(soon(t), 10), pglock.ErrClosed)
}
