package pgtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencedlock/fencedlock/internal/pgtemp"
	"github.com/fencedlock/fencedlock/internal/pgtest"
)

func TestARelayFreezesAndCuts(t *testing.T) {
	t.Parallel()
	d := pgtest.Empty(t)
	r := pgtest.NewRelay(t, d.Server)
	connect := func() *pgx.Conn {
		conn, err := pgx.Connect(t.Context(), r.URL(d))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		return conn
	}
	conn := connect()
	if err := conn.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.Freeze()
	answered := make(chan error, 1)
	go func() { answered <- conn.Ping(t.Context()) }()
	select {
	case err := <-answered:
		t.Errorf("an answer through a frozen relay: %v", err)
	case <-time.After(50 * time.Millisecond): // nothing happens: no event to wait for
	}
	r.Cut()
	if err := <-answered; err == nil {
		t.Error("an answer through a relay that was cut")
	}
	if err := connect().Ping(t.Context()); err != nil {
		t.Errorf("after Cut: %v", err)
	}
}

// A frozen way is a standby that falls behind, and stays behind when it is promoted.
func TestAReplicaFallsBehindWhileItsWayIsFrozen(t *testing.T) {
	t.Parallel()
	_, primary := pgtest.OwnServer(t, pgtemp.Options{})
	primary.Exec(t, `CREATE TABLE numbers AS SELECT 1 AS n`)
	replica := primary.Replica(t, pgtemp.StandbyOptions{})
	service := pgtest.NewRelay(t, primary.Server)
	replica.Way.Freeze()
	primary.Exec(t, `SET synchronous_commit = local; INSERT INTO numbers VALUES (2)`)
	if err := primary.Server.Kill(); err != nil {
		t.Fatal(err)
	}
	replica.Way.Cut()
	if err := replica.Server.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Query[int](t, replica.Database, `SELECT count(*) FROM numbers`); n != 1 {
		t.Errorf("the standby has %d rows, want 1", n)
	}
	service.To(replica.Server)
	conn, err := pgx.Connect(t.Context(), service.URL(primary))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), `INSERT INTO numbers VALUES (3)`); err != nil {
		t.Errorf("the service after its move: %v", err)
	}
}
