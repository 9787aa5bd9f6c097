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
	const ttl = 4 * time.Second
	d := pgtest.DB(t)
	l := take(t, open(t, d.URL, pglock.Config{TTL: ttl, RenewEvery: ttl / 6}), "a")
	ctx, cancel := context.WithTimeout(t.Context(), ttl*3/2)
	defer cancel()
	_, err := client(t, d).Acquire(ctx, "a")
	wantErr(t, "a rival's Acquire for longer than a TTL", err, pglock.ErrHeld)
	stillHeld(t, d, l)
}
