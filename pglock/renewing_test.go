package pglock_test

import (
	"context"
	"testing"
	"time"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/pglock"
)

func TestWorkLongerThanTheTTLKeepsTheLock(t *testing.T) {
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	d := pgtest.DB(t)
	l := take(t, open(t, d.URL, pglock.Config{TTL: ttl, RenewEvery: ttl / 6}), "a")
	ctx, cancel := context.WithTimeout(t.Context(), 3*ttl)
	defer cancel()
	_, err := client(t, d).Acquire(ctx, "a")
	wantErr(t, "a rival's Acquire during three TTLs", err, pglock.ErrHeld)
	stillHeld(t, d, l)
}
