package pglock_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/migrations"
	"github.com/fencedlock/fencedlock/pglock"
)

// withoutGuard takes the look at the guard out of a second installation's acquire.
const withoutGuard = `DO $do$
DECLARE
  body text := pg_get_functiondef('unguarded.acquire'::regproc);
  bare text := regexp_replace(body, 'SELECT g.cap_us INTO cap FROM [^;]*;\s*IF NOT FOUND THEN', 'cap := 30000000; IF false THEN');
BEGIN
  IF bare = body THEN RAISE 'the look at the guard is not where it was'; END IF;
  EXECUTE bare;
END $do$`

// BenchmarkAcquireBesideNoGuard measures what the guard against restarts and failovers costs: acquire and release beside the
// same without a look at the guard, as BenchmarkAcquireReleaseBesideUpserts measures.
//
//	go test -run '^$' -bench BesideNoGuard -benchtime 1x ./pglock
func BenchmarkAcquireBesideNoGuard(b *testing.B) {
	ctx := context.Background()
	server, err := pgtemp.Start(ctx, pgtemp.Options{Durable: true, Fresh: true})
	if err != nil {
		b.Skip(err)
	}
	defer server.Stop() //nolint:errcheck // it is thrown away
	pool, err := pgxpool.New(ctx, server.URL("postgres"))
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	pair := func(schema string) func(name string) error {
		if err := migrations.Up(ctx, pool, migrations.Schema(schema)); err != nil {
			b.Fatal(err)
		}
		client, err := pglock.New(pool, pglock.Config{Schema: schema})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { client.Close(ctx) }) //nolint:errcheck // the server goes with it
		return func(name string) error {
			l, err := client.TryAcquire(ctx, name)
			if err != nil {
				return err
			}
			return l.Release(ctx)
		}
	}
	guarded, unguarded := pair("pglock"), pair("unguarded")
	if _, err := pool.Exec(ctx, withoutGuard); err != nil {
		b.Fatal(err)
	}
	for _, goroutines := range []int{1, 64} {
		b.Run(fmt.Sprintf("goroutines=%d", goroutines), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				compare(b, goroutines, guarded, unguarded, "without/s")
				b.StartTimer()
			}
		})
	}
}
