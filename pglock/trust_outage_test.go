package pglock_test

import (
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

// However the database goes away, the holder is told while nobody else can have the lock yet, with no answer needed.
func TestALeaseEndsBeforeItsTTLWhenTheDatabaseIsGone(t *testing.T) {
	t.Parallel()
	d := pgtest.DB(t)
	for what, fault := range map[string]func(p *pgtest.Proxy){
		"cut and refused":   func(p *pgtest.Proxy) { p.Refuse(true); p.Cut() },
		"silent":            func(p *pgtest.Proxy) { p.Stall(pgtest.Both) },
		"requests get lost": func(p *pgtest.Proxy) { p.Stall(pgtest.ToServer) },
		"cut, then silent":  func(p *pgtest.Proxy) { p.Stall(pgtest.Both); p.Cut() },
		"silent for renewals": func(p *pgtest.Proxy) { // the server hears and commits them, and nobody is told
			p.Stall(pgtest.ToClient)
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			const ttl = 3 * time.Second
			p := pgtest.NewProxy(t, d)
			c := open(t, p.URL(), pglock.Config{TTL: ttl, RenewEvery: ttl / 4})
			l := take(t, c, what)
			wantErr(t, "Renew", l.Renew(soon(t)), nil)
			conn := d.Conn(t)
			confirmed := time.Now() // the last renewal was confirmed before

			fault(p)
			wantLoss(t, l, pglock.Expired)

			if after := time.Since(confirmed); after >= ttl {
				t.Errorf("told %v after the last confirmed renewal, the TTL is %v", after, ttl)
			}
			var held bool
			if err := conn.QueryRow(t.Context(), isHeld, what).Scan(&held); err != nil || !held {
				t.Errorf("told when others could be granted the lock already (%v)", err)
			}
			p.Resume() // so that Close need not wait
		})
	}
}
