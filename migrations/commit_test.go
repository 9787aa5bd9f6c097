package migrations_test

import (
	"testing"

	"github.com/fencedlock/fencedlock/internal/pgtest"
	"github.com/fencedlock/fencedlock/migrations"
)

// Nobody knows whether a commit whose answer was lost has happened. Up may be called again either way.
func TestALostCommitIsSettledByTheNextUp(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*pgtest.Proxy, string) <-chan struct{}{
		"the reply": (*pgtest.Proxy).LoseNextReply, "the request": (*pgtest.Proxy).LoseNextRequest,
	} {
		t.Run(name, func(t *testing.T) {
			db := pgtest.Empty(t)
			// The first schema change waits for the test, so that the next commit is the one that counts.
			db.Exec(t, `CREATE FUNCTION public.wait() RETURNS event_trigger LANGUAGE plpgsql SET lock_timeout = 0 AS $$
				BEGIN PERFORM pg_advisory_xact_lock_shared(1); END $$;
				CREATE EVENT TRIGGER wait ON ddl_command_start EXECUTE FUNCTION public.wait()`)
			before := objects(t, db)
			gate, err := db.Conn(t).Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := gate.Exec(t.Context(), "SELECT pg_advisory_xact_lock(1)"); err != nil {
				t.Fatal(err)
			}
			proxy := pgtest.NewProxy(t, db)
			pool := poolAs(t, proxy.URL())
			ctx := bounded(t)
			up := make(chan error)
			go func() { up <- migrations.Up(ctx, pool) }()
			db.WaitFor(t, pgtest.Waiting)
			lost := lose(proxy, "commit\x00") // all of the message: the files speak of commits too
			if err := gate.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			<-lost
			wantErr(t, <-up, nil)

			if installed := objects(t, db) > before; installed != (name == "the reply") {
				t.Errorf("installed: %t", installed)
			}
			mustUp(t, pool)
			if err := migrations.Down(ctx, pool); err != nil {
				t.Fatal(err)
			}
		})
	}
}
